/* A disk with faults: an LD_PRELOAD library that lets system calls on a store fail or take long.
 * Loaded into a broker by faulty_disk.py, which tells it what to do while it runs. Calls are
 * told apart by their paths only, never by the bytes.
 *
 * PENSTOCK_DISK_ROOT   only what lies below this absolute path, free of links, counts
 * PENSTOCK_DISK_DIR    holds: words    64-bit words, mapped shared, as below
 *                             failed   the calls that were made to fail, a line each: name, path
 *
 * Three kinds of calls are counted, each over all processes:
 *   grow    those that can need room: fallocate, ftruncate, write, open with O_CREAT, mkdir, rename,
 *           link and their like (a name needs a place in its directory, too)
 *   flush   fsync, fdatasync, msync, pwritev2 with RWF_DSYNC
 *   open    the opening of a file that is there
 * Words 4k to 4k + 3 are kind k's: calls so far, the first and the last one to fail, with which errno.
 * Word 12: how many microseconds each flush takes longer; looked at while it waits, too.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum kind { GROW, FLUSH, OPEN };
enum { CALLS, FIRST, LAST, ERROR, PER_KIND, DELAY_US = 3 * PER_KIND, WORDS };

static struct {
    const char *root, *dir;
    volatile uint64_t *words;
    int (*open)(const char *, int, ...);
    ssize_t (*write)(int, const void *, size_t);
} the;

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void begin(void) {
    char path[PATH_MAX];
    the.open = NEXT(open);
    the.write = NEXT(write);
    the.dir = getenv("PENSTOCK_DISK_DIR");
    if (!the.dir) return;
    snprintf(path, sizeof path, "%s/words", the.dir);
    int fd = the.open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) { perror(path); abort(); }
    the.words = mmap(NULL, WORDS * sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (the.words == MAP_FAILED) abort();
    close(fd);
    the.root = getenv("PENSTOCK_DISK_ROOT");
}

static int is_below(const char *path) {
    size_t root = strlen(the.root);
    return !strncmp(path, the.root, root) && (!path[root] || path[root] == '/');
}

/* Whether an open file, or a name that need not be there yet, counts; its path. */
static int file_counts(int fd, char *path) {
    char link[64];
    if (!the.root) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, PATH_MAX - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return is_below(path);
}

static int name_counts(const char *name, char *path) {
    char parent[PATH_MAX];
    const char *last = strrchr(name, '/');
    if (!the.root || !last) return 0;
    snprintf(parent, sizeof parent, "%.*s", (int)(last - name), name);
    if (!realpath(*parent ? parent : "/", path)) return 0;
    size_t size = strlen(path);
    snprintf(path + size, PATH_MAX - size, "%s", last);
    return is_below(path);
}

/* Count a call; whether it is to fail, with errno set then. */
static int fails(enum kind kind, const char *name, const char *path) {
    volatile uint64_t *words = the.words + kind * PER_KIND;
    uint64_t call = __atomic_add_fetch(&words[CALLS], 1, __ATOMIC_SEQ_CST);
    if (call < words[FIRST] || words[LAST] < call) return 0;
    char line[PATH_MAX + 64], file[PATH_MAX];
    snprintf(file, sizeof file, "%s/failed", the.dir);
    int size = snprintf(line, sizeof line, "%s %s\n", name, path);
    int fd = the.open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0 || the.write(fd, line, size) != size) abort();
    close(fd);
    errno = (int)words[ERROR];
    return 1;
}

static uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000ull + now.tv_nsec / 1000;
}

static void wait_for_disk(void) {
    uint64_t since = now_us();
    while (now_us() - since < the.words[DELAY_US]) {
        uint64_t left = the.words[DELAY_US] - (now_us() - since);
        usleep(left < 2000 ? left : 2000);
    }
}

static int file_fails(enum kind kind, int fd, const char *name) {
    char path[PATH_MAX];
    int before = errno;
    if (!file_counts(fd, path)) { errno = before; return 0; }
    if (kind == FLUSH) wait_for_disk();
    if (fails(kind, name, path)) return 1;
    errno = before;
    return 0;
}

static int name_fails(enum kind kind, const char *name, const char *call) {
    char path[PATH_MAX];
    int before = errno;
    if (name_counts(name, path) && fails(kind, call, path)) return 1;
    errno = before;
    return 0;
}

/* --- flush --- */

int fsync(int fd) { return file_fails(FLUSH, fd, "fsync") ? -1 : NEXT(fsync)(fd); }

int fdatasync(int fd) { return file_fails(FLUSH, fd, "fdatasync") ? -1 : NEXT(fdatasync)(fd); }

/* A mapping's file is found by its address. */
int msync(void *address, size_t length, int flags) {
    FILE *maps = the.root ? fopen("/proc/self/maps", "re") : NULL;
    char line[PATH_MAX + 128], path[PATH_MAX];
    int failed = 0;
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx %*s %*s %*s %*s %4095[^\n]", &from, &to, path) == 3
            && from <= (unsigned long)address && (unsigned long)address < to) {
            if (is_below(path)) wait_for_disk();
            failed = is_below(path) && fails(FLUSH, "msync", path);
            break;
        }
    }
    int error = errno;
    if (maps) fclose(maps);
    errno = error;
    return failed ? -1 : NEXT(msync)(address, length, flags);
}

/* --- grow, by an open file --- */

ssize_t write(int fd, const void *data, size_t size) {
    return file_fails(GROW, fd, "write") ? -1 : the.write(fd, data, size);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    return file_fails(GROW, fd, "writev") ? -1 : NEXT(writev)(fd, parts, count);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    return file_fails(GROW, fd, "pwrite") ? -1 : NEXT(pwrite64)(fd, data, size, at);
}

ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t at, int flags) {
    enum kind kind = flags & (RWF_DSYNC | RWF_SYNC) ? FLUSH : GROW;
    return file_fails(kind, fd, "pwritev2") ? -1 : NEXT(pwritev64v2)(fd, parts, count, at, flags);
}

int ftruncate64(int fd, off64_t size) {
    struct stat state;
    int grows = !fstat(fd, &state) && state.st_size < size;
    return grows && file_fails(GROW, fd, "ftruncate") ? -1 : NEXT(ftruncate64)(fd, size);
}

/* This one returns its error. */
int posix_fallocate64(int fd, off64_t at, off64_t size) {
    return file_fails(GROW, fd, "posix_fallocate") ? errno : NEXT(posix_fallocate64)(fd, at, size);
}

ssize_t sendfile64(int to, int from, off64_t *at, size_t size) {
    return file_fails(GROW, to, "sendfile") ? -1 : NEXT(sendfile64)(to, from, at, size);
}

/* --- grow, by a name --- */

int mkdir(const char *name, mode_t mode) {
    return name_fails(GROW, name, "mkdir") ? -1 : NEXT(mkdir)(name, mode);
}

int rename(const char *from, const char *to) {
    return name_fails(GROW, to, "rename") ? -1 : NEXT(rename)(from, to);
}

int renameat2(int from_at, const char *from, int to_at, const char *to, unsigned flags) {
    return name_fails(GROW, to, "renameat2") ? -1
                                             : NEXT(renameat2)(from_at, from, to_at, to, flags);
}

int link(const char *from, const char *to) {
    return name_fails(GROW, to, "link") ? -1 : NEXT(link)(from, to);
}

/* A directory is opened in any case, to be synced. */
int open64(const char *name, int flags, ...) {
    va_list rest;
    struct stat state;
    va_start(rest, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    int before = errno, is_there = stat(name, &state) == 0;
    errno = before;
    if (is_there ? S_ISREG(state.st_mode) && name_fails(OPEN, name, "open")
                 : flags & O_CREAT && name_fails(GROW, name, "open"))
        return -1;
    return the.open(name, flags | O_LARGEFILE, mode);
}

/* What is called without the 64 is the same. */
int open(const char *, int, ...) __attribute__((alias("open64")));
ssize_t pwrite(int, const void *, size_t, off_t) __attribute__((alias("pwrite64")));
ssize_t pwritev2(int, const struct iovec *, int, off_t, int) __attribute__((alias("pwritev64v2")));
int ftruncate(int, off_t) __attribute__((alias("ftruncate64")));
int posix_fallocate(int, off_t, off_t) __attribute__((alias("posix_fallocate64")));
