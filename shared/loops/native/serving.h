// The kernel's side of serving.pxi: one wait, and one look at this process's memory. Brokers run
// on Linux only, and this module is built elsewhere too, for clients: there nobody calls it.

#ifdef __linux__
#include <errno.h>
#include <poll.h>
#include <unistd.h>

// 1: ready or interrupted, 0: the time is over, -1: errno says why
static int wait_for(int source, int wait_ms) {
    struct pollfd asked = {source, POLLIN, 0};
    int ready = poll(&asked, 1, wait_ms);
    return ready < 0 && errno == EINTR ? 1 : ready;
}

static long read_at_start(int handle, char *into, long size) {
    return pread(handle, into, size, 0);
}
#else
#include <errno.h>

static int wait_for(int source, int wait_ms) {
    (void) source, (void) wait_ms;
    errno = ENOSYS;
    return -1;
}

static long read_at_start(int handle, char *into, long size) {
    (void) handle, (void) into, (void) size;
    errno = ENOSYS;
    return -1;
}
#endif
