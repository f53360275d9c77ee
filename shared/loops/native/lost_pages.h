/* Pages of mapped files that the disk cannot read become pages of 0xFF.
 *
 * The kernel answers the first touch of such a page with SIGBUS, which ends the process. Here the
 * handler puts another page in its place, if it lies in a range that is watched, and the touch is
 * done again. A fault anywhere else goes to whatever handled the signal before.
 *
 * A slot is written by one thread at a time, which holds the interpreter's lock; the handler, on
 * any thread, may read it meanwhile. So `stop` is stored last, and cleared first.
 */
#ifndef PENSTOCK_NATIVE_LOST_PAGES_H
#define PENSTOCK_NATIVE_LOST_PAGES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __linux__
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* more segments and index files than a process has mapped at once */
#define LOST_PAGES_SLOTS 1024
/* as shared/files/bad_sectors.py has it */
#define LOST_PAGES_FILL 0xFF

static struct {
    uintptr_t start;
    _Atomic uintptr_t stop;
    atomic_long lost;
    uintptr_t first;
    int is_written;
} lost_pages_watched[LOST_PAGES_SLOTS];

static struct sigaction lost_pages_before;
static uintptr_t lost_pages_size;
static atomic_long lost_pages_all;
/* a page of 0xFF, which stands at each place that is only read */
static void *lost_pages_page;

/* Put a page there, so that all pointers into the mapping stay good. Returns whether it is there.
 *
 * The page is shared where it is only read: what MADV_DONTNEED takes away comes back as it was. A
 * page of its own would come back as zeros, but is what somebody may write to. */
static int lost_pages_replace(uintptr_t at, int is_written)
{
    void *page;
    if (!is_written)
        return mremap(lost_pages_page, 0, lost_pages_size, MREMAP_MAYMOVE | MREMAP_FIXED,
                      (void *)at) != MAP_FAILED;
    page = mmap((void *)at, lost_pages_size, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (page != MAP_FAILED)
        memset(page, LOST_PAGES_FILL, lost_pages_size);
    return page != MAP_FAILED;
}

static void lost_pages_handle(int number, siginfo_t *info, void *context)
{
    uintptr_t at = (uintptr_t)info->si_addr & ~(lost_pages_size - 1);
    for (int slot = 0; slot < LOST_PAGES_SLOTS; slot++) {
        if (at >= lost_pages_watched[slot].stop || at < lost_pages_watched[slot].start)
            continue;
        if (!lost_pages_replace(at, lost_pages_watched[slot].is_written))
            break;
        if (atomic_fetch_add(&lost_pages_watched[slot].lost, 1) == 0)
            lost_pages_watched[slot].first = at - lost_pages_watched[slot].start;
        lost_pages_all++;
        return;
    }
    /* the touch is done again, and this time ends as it would have without us */
    sigaction(SIGBUS, &lost_pages_before, NULL);
    (void)number;
    (void)context;
}

/* Begin to handle the signal. Returns whether that was possible. */
static int lost_pages_begin(void)
{
    struct sigaction ours;
    size_t size = (size_t)sysconf(_SC_PAGESIZE);
    void *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return 0;
    memset(page, LOST_PAGES_FILL, size);
    mprotect(page, size, PROT_READ);
    lost_pages_page = page;
    lost_pages_size = size;
    memset(&ours, 0, sizeof ours);
    ours.sa_sigaction = lost_pages_handle;
    ours.sa_flags = SA_SIGINFO | SA_RESTART;
    sigemptyset(&ours.sa_mask);
    if (sigaction(SIGBUS, &ours, &lost_pages_before))
        lost_pages_size = 0;
    return lost_pages_size != 0;
}

/* The slot of a range that is watched from now on; -1 if there is none. */
static int lost_pages_watch(const void *start, size_t size, int is_written)
{
    if (!lost_pages_size && !lost_pages_begin())
        return -1;
    for (int slot = 0; slot < LOST_PAGES_SLOTS; slot++)
        if (!lost_pages_watched[slot].stop) {
            lost_pages_watched[slot].start = (uintptr_t)start;
            lost_pages_watched[slot].lost = 0;
            lost_pages_watched[slot].is_written = is_written;
            lost_pages_watched[slot].stop = (uintptr_t)start + size;
            return slot;
        }
    return -1;
}

static void lost_pages_forget(int slot)
{
    if (slot >= 0)
        lost_pages_watched[slot].stop = 0;
}

static long lost_pages_count(int slot)
{
    return slot < 0 ? 0 : lost_pages_watched[slot].lost;
}

static long lost_pages_so_far(void)
{
    return lost_pages_all;
}

static size_t lost_pages_first(int slot)
{
    return slot < 0 ? 0 : lost_pages_watched[slot].first;
}

/* Touch each page of a range, so that a system call that is given it next finds them readable. */
static void lost_pages_touch(const unsigned char *data, size_t size)
{
    const volatile unsigned char *at = data, *stop = data + size;
    if (!lost_pages_size)
        return; /* nothing is watched */
    while (at < stop) {
        (void)*at;
        at = (const volatile unsigned char *)(((uintptr_t)at | (lost_pages_size - 1)) + 1);
    }
}

#else /* brokers run on Linux only, and clients map no files of a store */
static int lost_pages_watch(const void *start, size_t size, int is_written) { return -1; }
static void lost_pages_forget(int slot) {}
static long lost_pages_count(int slot) { return 0; }
static long lost_pages_so_far(void) { return 0; }
static size_t lost_pages_first(int slot) { return 0; }
static void lost_pages_touch(const unsigned char *data, size_t size) {}
#endif
#endif
