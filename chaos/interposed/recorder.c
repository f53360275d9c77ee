/* What a disk would hold: an LD_PRELOAD library that records what each successful fsync, fdatasync,
 * msync, and pwritev2 with RWF_DSYNC has made durable. Loaded into a broker by recorder.py. It does not
 * parse what it records: the recording must be right whatever the broker does wrong.
 *
 * PENSTOCK_RECORD_ROOT   only files and directories below this absolute path count
 * PENSTOCK_RECORD_DIR    holds: log     the records
 *                               clock   64-bit words, mapped shared: flushes done, bytes of the
 *                                       log that count
 *                               shadow/ a file for each inode, as the disk holds it
 *
 * A record of the log, native-endian 64-bit words:
 *   file       1, sequence, id, size, pages n, then n times: page number, 4096 bytes
 *   directory  2, sequence, length of path, entries n, path, then n times: id (0 for a directory),
 *              length, name
 * A file's id is made of its inode and of when it was made: a file system gives the inode of a removed
 * file to another, while the name of the first may still be what the disk has.
 * The pages are those that differ from the shadow. They are read before the call, so the disk holds
 * at least them; the sequence number is taken, and the record written, after it has succeeded.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define PAGE 4096

static struct {
    const char *root, *dir;
    uint64_t *clock;
    int (*fsync)(int), (*fdatasync)(int), (*msync)(void *, size_t, int);
    ssize_t (*pwritev2)(int, const struct iovec *, int, off_t, int);
} the;

struct bytes { char *data; size_t size, room; };

static void put(struct bytes *b, const void *data, size_t size) {
    if (b->size + size > b->room) {
        b->room = (b->size + size) * 2;
        b->data = realloc(b->data, b->room);
        if (!b->data) abort();
    }
    memcpy(b->data + b->size, data, size);
    b->size += size;
}

static void put_word(struct bytes *b, uint64_t word) { put(b, &word, sizeof word); }

static int open_in(const char *name, int flags) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", the.dir, name);
    int fd = open(path, flags | O_CLOEXEC, 0600);
    if (fd < 0) { perror(path); abort(); }
    return fd;
}

__attribute__((constructor)) static void begin(void) {
    the.fsync = dlsym(RTLD_NEXT, "fsync");
    the.fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    the.msync = dlsym(RTLD_NEXT, "msync");
    the.pwritev2 = dlsym(RTLD_NEXT, "pwritev2");
    the.root = getenv("PENSTOCK_RECORD_ROOT");
    the.dir = getenv("PENSTOCK_RECORD_DIR");
    if (!the.root || !the.dir) { the.root = NULL; return; }
    int fd = open_in("clock", O_RDWR | O_CREAT);
    if (ftruncate(fd, 16)) abort();
    the.clock = mmap(NULL, 16, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (the.clock == MAP_FAILED) abort();
    close(fd);
}

/* Whether this file counts; its path and state. */
static int counts(int fd, char *path, struct stat *state) {
    char link[64];
    if (!the.root) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, PATH_MAX - 1);
    size_t root = strlen(the.root);
    if (size < 0) return 0;
    path[size] = 0;
    if (strncmp(path, the.root, root) || (path[root] && path[root] != '/')) return 0;
    return fstat(fd, state) == 0 && (S_ISREG(state->st_mode) || S_ISDIR(state->st_mode));
}

/* As file_id() of images.py; 0 for what is not there. */
static uint64_t id_of(int at, const char *path, int flags) {
    struct statx state;
    if (statx(at, path, flags | AT_SYMLINK_NOFOLLOW, STATX_INO | STATX_BTIME, &state)) return 0;
    uint64_t made = (uint64_t)state.stx_btime.tv_sec * 1000000000 + state.stx_btime.tv_nsec;
    return state.stx_ino * 0x9E3779B97F4A7C15 ^ (state.stx_mask & STATX_BTIME ? made : 0);
}

static int open_shadow(uint64_t id) {
    char name[64];
    snprintf(name, sizeof name, "shadow/%llu", (unsigned long long)id);
    return open_in(name, O_RDWR | O_CREAT);
}

/* The pages of a range that differ from the shadow. Holes of the file are skipped where the shadow
 * has none. */
static void take_pages(int asked, uint64_t id, const struct stat *state, off_t from, off_t to,
                       struct bytes *out) {
    static __thread char now[PAGE], then[PAGE];
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", asked);
    int fd = open(link, O_RDONLY | O_CLOEXEC); /* the one asked for may be for writing only */
    if (fd < 0) abort();
    int shadow = open_shadow(id);
    struct stat before;
    fstat(shadow, &before);
    put_word(out, id);
    put_word(out, state->st_size);
    size_t count_at = out->size;
    uint64_t count = 0;
    put_word(out, 0);
    for (off_t at = from / PAGE * PAGE; at < state->st_size && at < to; at += PAGE) {
        if (at >= before.st_size) {
            off_t data = lseek(fd, at, SEEK_DATA);
            if (data < 0) break;
            at = data / PAGE * PAGE;
            if (at >= to) break;
        }
        memset(now, 0, PAGE);
        memset(then, 0, PAGE);
        if (pread(fd, now, PAGE, at) < 0 || pread(shadow, then, PAGE, at) < 0) abort();
        if (!memcmp(now, then, PAGE)) continue;
        put_word(out, at / PAGE);
        put(out, now, PAGE);
        count++;
    }
    memcpy(out->data + count_at, &count, sizeof count);
    close(shadow);
    close(fd);
}

/* Whether the directory is there: one that was removed has no names that could be durable. */
static int take_names(const char *path, struct bytes *out) {
    DIR *directory = opendir(path);
    if (!directory) return 0;
    put_word(out, strlen(path));
    size_t count_at = out->size;
    uint64_t count = 0;
    put_word(out, 0);
    put(out, path, strlen(path));
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        uint64_t id = entry->d_type == DT_DIR ? 0 : id_of(dirfd(directory), entry->d_name, 0);
        if (entry->d_type != DT_DIR && !id) continue; /* it has gone meanwhile */
        put_word(out, id);
        put_word(out, strlen(entry->d_name));
        put(out, entry->d_name, strlen(entry->d_name));
        count++;
    }
    memcpy(out->data + count_at, &count, sizeof count);
    closedir(directory);
    return 1;
}

/* Bring the shadow to what the record says. */
static void follow(const struct bytes *record, uint64_t id, off_t size) {
    int shadow = open_shadow(id);
    if (ftruncate(shadow, size)) abort();
    const char *at = record->data + 5 * sizeof(uint64_t), *end = record->data + record->size;
    for (; at < end; at += sizeof(uint64_t) + PAGE) {
        uint64_t page;
        memcpy(&page, at, sizeof page);
        off_t left = size - (off_t)page * PAGE;
        ssize_t part = left < PAGE ? left : PAGE;
        if (pwrite(shadow, at + sizeof page, part, page * PAGE) != part) abort();
    }
    close(shadow);
}

static int record_range(int fd, int (*sync)(int), off_t from, off_t to) {
    char path[PATH_MAX];
    struct stat state;
    if (!counts(fd, path, &state)) return sync(fd);
    int log = open_in("log", O_WRONLY | O_CREAT);
    flock(log, LOCK_EX); /* one flush at a time: their order is the log's */
    struct bytes taken = {0};
    put_word(&taken, S_ISDIR(state.st_mode) ? 2 : 1);
    put_word(&taken, 0);
    int there = 1;
    uint64_t id = id_of(fd, "", AT_EMPTY_PATH);
    if (S_ISDIR(state.st_mode)) there = take_names(path, &taken);
    else take_pages(fd, id, &state, from, to, &taken);
    int result = sync(fd), error = errno;
    if (result == 0 && there) {
        uint64_t sequence = the.clock[0] + 1;
        memcpy(taken.data + sizeof sequence, &sequence, sizeof sequence);
        uint64_t end = the.clock[1];
        /* killed before the clock moves, this flush never was; after it, the shadow lags, and the
         * next flush takes the same pages again */
        if (pwrite(log, taken.data, taken.size, end) != (ssize_t)taken.size) abort();
        __atomic_store_n(&the.clock[1], end + taken.size, __ATOMIC_SEQ_CST);
        __atomic_store_n(&the.clock[0], sequence, __ATOMIC_SEQ_CST);
        if (!S_ISDIR(state.st_mode)) follow(&taken, id, state.st_size);
    }
    free(taken.data);
    close(log);
    errno = error;
    return result;
}

static int record(int fd, int (*sync)(int)) { return record_range(fd, sync, 0, LLONG_MAX); }

int fsync(int fd) { return record(fd, the.fsync); }

int fdatasync(int fd) { return record(fd, the.fdatasync); }

/* A mapping's file is found by its address; only pages that were asked for count as flushed. */
int msync(void *address, size_t length, int flags) {
    unsigned long at = (unsigned long)address, from, to, offset;
    if (the.root) {
        FILE *maps = fopen("/proc/self/maps", "re");
        char line[PATH_MAX + 128], path[PATH_MAX];
        while (maps && fgets(line, sizeof line, maps)) {
            if (sscanf(line, "%lx-%lx %*s %lx %*s %*s %4095[^\n]", &from, &to, &offset, path) == 4
                && from <= at && at < to && !strncmp(path, the.root, strlen(the.root))) {
                fclose(maps);
                int fd = open(path, O_RDONLY | O_CLOEXEC);
                if (fd < 0) return the.msync(address, length, flags);
                off_t start = offset + (at - from), stop = start + length;
                int result = record_range(fd, the.fdatasync, start, (stop + PAGE - 1) / PAGE * PAGE);
                close(fd);
                return result;
            }
        }
        if (maps) fclose(maps);
    }
    return the.msync(address, length, flags);
}

/* Written without the flag, then synced: what is durable is the range, if also the rest is flushed. */
ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t at, int flags) {
    ssize_t done = the.pwritev2(fd, parts, count, at, flags & ~(RWF_DSYNC | RWF_SYNC));
    if (done > 0 && flags & (RWF_DSYNC | RWF_SYNC)
        && record_range(fd, the.fdatasync, at, at + done)) return -1;
    return done;
}

ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off_t at, int flags) {
    return pwritev2(fd, parts, count, at, flags);
}
