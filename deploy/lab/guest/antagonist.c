/* A lab guest that harms its neighbours by one resource, as much as it can.
 *
 *   antagonist memory --mib N --mib-per-s N      grow to N MiB, and touch all of that for ever
 *   antagonist disk --threads N --write-percent N    blocks of 4 KiB at random places of /dev/vda, each past all caches
 *   antagonist network --threads N --bytes N --to ADDRESS    UDP to the port 9 (discard)
 *   antagonist cache --threads N --mib N         walk through so much memory, a cache line at a time
 *
 * With --check as the last word it only looks at the options.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <linux/fs.h>
#include <time.h>
#include <unistd.h>

enum { MAX_THREADS = 64, MIB = 1 << 20, BLOCK = 4096, CACHE_LINE = 64, DISCARD_PORT = 9, MAX_DATAGRAM = 65507, NS_PER_S = 1000000000 };

static struct {
    int64_t threads;
    int64_t mib;
    int64_t mib_per_s;
    int64_t write_percent;
    int64_t bytes;
    struct sockaddr_in to;
} options;

static void fail(const char *what)
{
    fprintf(stderr, "antagonist: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static char *memory_of(int64_t size)
{
    char *memory = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        fail("mmap");
    return memory;
}

static void *take_memory(void *unused)
{
    int64_t pause_ns = NS_PER_S / options.mib_per_s;
    struct timespec pause = {.tv_sec = pause_ns / NS_PER_S, .tv_nsec = pause_ns % NS_PER_S};
    char *memory = memory_of(options.mib * MIB);
    int64_t grown = 0;

    (void)unused;
    for (;;) {
        if (grown < options.mib) {
            memset(memory + grown * MIB, 1, MIB);
            grown++;
            nanosleep(&pause, NULL);
            continue;
        }
        for (int64_t at = 0; at < options.mib * MIB; at += BLOCK)
            ((volatile char *)memory)[at]++;
    }
    return NULL;
}

static void *use_disk(void *number)
{
    uint64_t state = 88172645463325252u + (uint64_t)(uintptr_t)number;
    int disk = open("/dev/vda", O_RDWR | O_DIRECT | O_DSYNC);
    uint64_t bytes;
    void *block;

    if (disk < 0 || ioctl(disk, BLKGETSIZE64, &bytes) != 0)
        fail("/dev/vda");
    if (posix_memalign(&block, BLOCK, BLOCK) != 0)
        fail("posix_memalign");
    memset(block, 1, BLOCK);
    for (;;) {
        off_t at = (off_t)(next_random(&state) % (bytes / BLOCK)) * BLOCK;
        int64_t dice = (int64_t)(next_random(&state) % 100);
        ssize_t done = dice < options.write_percent ? pwrite(disk, block, BLOCK, at) : pread(disk, block, BLOCK, at);

        if (done != BLOCK)
            fail("/dev/vda");
    }
    return NULL;
}

static void *flood_network(void *unused)
{
    static char datagram[MAX_DATAGRAM];
    int sender = socket(AF_INET, SOCK_DGRAM, 0);

    (void)unused;
    if (sender < 0)
        fail("socket");
    for (;;) /* full queues and refusals are no reason to stop */
        (void)sendto(sender, datagram, (size_t)options.bytes, 0, (struct sockaddr *)&options.to, sizeof(options.to));
    return NULL;
}

static void *walk_cache(void *unused)
{
    volatile char *memory = memory_of(options.mib * MIB);

    (void)unused;
    for (;;)
        for (int64_t at = 0; at < options.mib * MIB; at += CACHE_LINE)
            memory[at]++;
    return NULL;
}

/* The text after "--name"; ends the program when there is none. */
static const char *text_of(int argc, char **argv, const char *name)
{
    for (int i = 2; i + 1 < argc; i += 2)
        if (strcmp(argv[i], name) == 0)
            return argv[i + 1];
    fprintf(stderr, "antagonist: %s is missing\n", name);
    exit(2);
}

/* The same as a whole number from low to high. */
static int64_t number_of(int argc, char **argv, const char *name, int64_t low, int64_t high)
{
    const char *text = text_of(argc, argv, name);
    char *end;
    long long value;

    errno = 0;
    value = strtoll(text, &end, 10);
    if (errno == 0 && *end == '\0' && end != text && value >= low && value <= high)
        return value;
    fprintf(stderr, "antagonist: %s needs a whole number from %lld to %lld\n", name, (long long)low, (long long)high);
    exit(2);
}

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "";
    void *(*harm)(void *);

    options.threads = 1;
    if (strcmp(kind, "memory") == 0) {
        harm = take_memory;
        options.mib = number_of(argc, argv, "--mib", 1, MIB);
        options.mib_per_s = number_of(argc, argv, "--mib-per-s", 1, 10000);
    } else if (strcmp(kind, "disk") == 0) {
        harm = use_disk;
        options.threads = number_of(argc, argv, "--threads", 1, MAX_THREADS);
        options.write_percent = number_of(argc, argv, "--write-percent", 0, 100);
    } else if (strcmp(kind, "network") == 0) {
        harm = flood_network;
        options.threads = number_of(argc, argv, "--threads", 1, MAX_THREADS);
        options.bytes = number_of(argc, argv, "--bytes", 1, MAX_DATAGRAM);
        options.to = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(DISCARD_PORT)};
        if (inet_pton(AF_INET, text_of(argc, argv, "--to"), &options.to.sin_addr) != 1) {
            fprintf(stderr, "antagonist: --to needs an IPv4 address\n");
            return 2;
        }
    } else if (strcmp(kind, "cache") == 0) {
        harm = walk_cache;
        options.threads = number_of(argc, argv, "--threads", 1, MAX_THREADS);
        options.mib = number_of(argc, argv, "--mib", 1, MIB);
    } else {
        fprintf(stderr, "usage: antagonist memory|disk|network|cache OPTIONS [--check]\n");
        return 2;
    }
    if (strcmp(argv[argc - 1], "--check") == 0)
        return 0;
    for (intptr_t number = 1; number < options.threads; number++) {
        pthread_t thread;

        if ((errno = pthread_create(&thread, NULL, harm, (void *)number)) != 0)
            fail("thread");
    }
    harm(NULL);
    return 0;
}
