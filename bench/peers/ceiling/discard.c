/* Speaks as much of RocketMQ's protocol as its Java client needs to send, and stores nothing.
 *
 * What a client reaches with it no broker can exceed on this machine: see discard.py. One thread,
 * one loop, blocking writes. It believes what the bench's own client says, and serves nobody else:
 * a field is found by its name anywhere in a header, and a frame is at most BUFFER_BYTES long.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BUFFER_BYTES = 8 << 20, ANSWER_BYTES = 2048, CONNECTIONS = 4096, TOPICS = 1024 };
enum { SEND = 10, MAX_OFFSET = 30, ROUTE = 105, SEND_V2 = 310, SEND_BATCH = 320 };

static struct { char *bytes; size_t size; } connections[CONNECTIONS];
/* How many messages each topic "has". */
static struct { char name[128]; unsigned long long count; } topics[TOPICS];
static char answers[BUFFER_BYTES];
static int port, queues;

/* Where the value of a field begins; NULL where there is none. */
static const char *value_of(const char *header, size_t size, const char *field) {
    const char *found = memmem(header, size, field, strlen(field));
    return found ? found + strlen(field) : NULL;
}

static long number(const char *header, size_t size, const char *field) {
    const char *found = value_of(header, size, field);
    return found ? strtol(found, NULL, 10) : 0;
}

static unsigned long long *count_of(const char *header, size_t size, const char *field) {
    static unsigned long long nobodys;
    const char *name = value_of(header, size, field);
    size_t length = name ? strcspn(name, "\"") : 0;
    if (!length || length >= sizeof topics->name)
        return &nobodys;
    for (int at = 0; at < TOPICS; at++) {
        if (!topics[at].name[0])
            memcpy(topics[at].name, name, length);
        if (!strncmp(topics[at].name, name, length) && !topics[at].name[length])
            return &topics[at].count;
    }
    return &nobodys;
}

/* A batch is messages one after the other, each of which begins with its length. */
static unsigned messages_in(const char *body, size_t size) {
    unsigned count = 0;
    for (size_t at = 0; at + 4 <= size; count++)
        at += ntohl(*(const unsigned *)(body + at));
    return count;
}

/* Write the answer to a request; its length, and 0 for one that wants none. */
static size_t answer(char *to, const char *header, size_t size, const char *body, size_t body_size) {
    char fields[512] = "", route[512] = "";
    long code = number(header, size, "\"code\":"), opaque = number(header, size, "\"opaque\":");
    if (number(header, size, "\"flag\":") & 3)
        return 0; /* one-way, or an answer */
    if (code == ROUTE) {
        snprintf(route, sizeof route,
            "{\"brokerDatas\":[{\"brokerAddrs\":{\"0\":\"127.0.0.1:%d\"},\"brokerName\":\"none\","
            "\"cluster\":\"none\"}],\"filterServerTable\":{},\"queueDatas\":[{\"brokerName\":"
            "\"none\",\"perm\":6,\"readQueueNums\":%d,\"topicSysFlag\":0,\"writeQueueNums\":%d}]}",
            port, queues, queues);
    } else if (code == SEND || code == SEND_V2 || code == SEND_BATCH) {
        unsigned long long *count = count_of(header, size, code == SEND ? "\"topic\":\"" : "\"b\":\"");
        unsigned long long at = *count;
        *count += code == SEND_BATCH ? messages_in(body, body_size) : 1;
        snprintf(fields, sizeof fields,
            ",\"extFields\":{\"queueId\":\"%llu\",\"TRACE_ON\":\"true\",\"MSG_REGION\":"
            "\"DefaultRegion\",\"msgId\":\"7F00000100002A9F%016llX\",\"queueOffset\":\"%llu\"}",
            at % queues, at, at / queues);
    } else if (code == MAX_OFFSET) {
        /* all that a topic has is said to be in its first queue */
        long queue = number(header, size, "\"queueId\":\"");
        snprintf(fields, sizeof fields, ",\"extFields\":{\"offset\":\"%llu\"}",
            queue ? 0 : *count_of(header, size, "\"topic\":\""));
    }
    int length = snprintf(to + 8, ANSWER_BYTES - 8,
        "{\"code\":0,\"flag\":1,\"language\":\"JAVA\",\"opaque\":%ld,\"serializeTypeCurrentRPC\":"
        "\"JSON\",\"version\":461%s}", opaque, fields);
    size_t end = 8 + length;
    memcpy(to + end, route, strlen(route));
    end += strlen(route);
    *(unsigned *)to = htonl(end - 4);
    *(unsigned *)(to + 4) = htonl(length);
    return end;
}

static void send_all(int handle, size_t size) {
    for (size_t at = 0; at < size;) {
        ssize_t sent = write(handle, answers + at, size - at);
        if (sent < 0)
            return; /* the next read says so, too */
        at += sent;
    }
}

/* Answer all whole frames, and keep what is left. */
static void serve(int handle) {
    char *bytes = connections[handle].bytes;
    size_t *size = &connections[handle].size, at = 0, end = 0;
    ssize_t got = read(handle, bytes + *size, BUFFER_BYTES - *size);
    if (got <= 0) {
        close(handle);
        return;
    }
    *size += got;
    while (*size - at >= 8) {
        size_t frame = 4 + (size_t)ntohl(*(unsigned *)(bytes + at));
        if (*size - at < frame)
            break;
        size_t header = ntohl(*(unsigned *)(bytes + at + 4)) & 0xffffff;
        if (end + ANSWER_BYTES > sizeof answers) {
            send_all(handle, end);
            end = 0;
        }
        const char *body = bytes + at + 8 + header;
        end += answer(answers + end, bytes + at + 8, header, body, frame - 8 - header);
        at += frame;
    }
    send_all(handle, end);
    memmove(bytes, bytes + at, *size -= at);
}

static void watch(int poll, int handle) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = handle};
    epoll_ctl(poll, EPOLL_CTL_ADD, handle, &event);
}

int main(int count, char **words) {
    if (count != 3)
        return 2;
    port = atoi(words[1]), queues = atoi(words[2]);
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(port)};
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listener = socket(AF_INET, SOCK_STREAM, 0), poll = epoll_create1(0), on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&here, sizeof here) || listen(listener, 128)) {
        perror("listen");
        return 1;
    }
    watch(poll, listener);
    for (;;) {
        struct epoll_event events[64];
        int ready = epoll_wait(poll, events, 64, -1);
        for (int each = 0; each < ready; each++) {
            int handle = events[each].data.fd;
            if (handle != listener) {
                serve(handle);
                continue;
            }
            int peer = accept(listener, NULL, NULL);
            if (peer < 0 || peer >= CONNECTIONS) {
                close(peer);
                continue;
            }
            setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            if (!connections[peer].bytes)
                connections[peer].bytes = malloc(BUFFER_BYTES);
            connections[peer].size = 0;
            watch(poll, peer);
        }
    }
}
