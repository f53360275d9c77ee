/* A wall clock that can be set: an LD_PRELOAD library that adds an offset to the time of day. Loaded
 * into a broker by clock.py. The monotonic clocks are the kernel's own, and so are files' times.
 *
 * PENSTOCK_SKEW_FILE   8 bytes, mapped shared: nanoseconds to add, native-endian, signed
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static volatile int64_t *skew;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("PENSTOCK_SKEW_FILE");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *page = mmap(NULL, sizeof *skew, PROT_READ, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED) skew = page;
    close(fd);
}

int clock_gettime(clockid_t clock, struct timespec *found) {
    if (!real_clock_gettime) real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real_clock_gettime(clock, found);
    if (code || !skew || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return code;
    int64_t sum = found->tv_sec * SECOND + found->tv_nsec + *skew;
    found->tv_sec = sum / SECOND;
    found->tv_nsec = sum % SECOND;
    return 0;
}

int gettimeofday(struct timeval *restrict found, void *restrict zone) {
    struct timespec now;
    (void)zone;
    int code = clock_gettime(CLOCK_REALTIME, &now);
    if (!code) *found = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
    return code;
}

time_t time(time_t *found) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found) *found = now.tv_sec;
    return now.tv_sec;
}
