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
} lost_pages_watched[LOST_PAGES_SLOTS];

static struct sigaction lost_pages_before;
static uintptr_t lost_pages_size;
static atomic_long lost_pages_all;

static void lost_pages_handle(int number, siginfo_t *info, void *context)
{
    uintptr_t at = (uintptr_t)info->si_addr & ~(lost_pages_size - 1);
    for (int slot = 0; slot < LOST_PAGES_SLOTS; slot++) {
        if (at >= lost_pages_watched[slot].stop || at < lost_pages_watched[slot].start)
            continue;
        /* the same place, so that all pointers into the mapping stay good */
        void *page = mmap((void *)at, lost_pages_size, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        if (page == MAP_FAILED)
            break;
        memset(page, LOST_PAGES_FILL, lost_pages_size);
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

/* The slot of a range that is watched from now on; -1 if there is none. */
static int lost_pages_watch(const void *start, size_t size)
{
    if (!lost_pages_size) {
        struct sigaction ours;
        memset(&ours, 0, sizeof ours);
        ours.sa_sigaction = lost_pages_handle;
        ours.sa_flags = SA_SIGINFO | SA_RESTART;
        sigemptyset(&ours.sa_mask);
        lost_pages_size = (uintptr_t)sysconf(_SC_PAGESIZE);
        if (sigaction(SIGBUS, &ours, &lost_pages_before)) {
            lost_pages_size = 0;
            return -1;
        }
    }
    for (int slot = 0; slot < LOST_PAGES_SLOTS; slot++)
        if (!lost_pages_watched[slot].stop) {
            lost_pages_watched[slot].start = (uintptr_t)start;
            lost_pages_watched[slot].lost = 0;
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
static int lost_pages_watch(const void *start, size_t size) { return -1; }
static void lost_pages_forget(int slot) {}
static long lost_pages_count(int slot) { return 0; }
static long lost_pages_so_far(void) { return 0; }
static size_t lost_pages_first(int slot) { return 0; }
static void lost_pages_touch(const unsigned char *data, size_t size) {}
#endif
#endif
