/* The batch load of a lab guest: a busy thread for each of its first vCPUs, or a square wave of busy and idle.
 *
 *   batch --threads N --on-ms MS --off-ms MS [--check]
 *
 * With --check it only looks at the options.
 * Thread i runs on vCPU i. With --off-ms 0 it never sleeps. Otherwise it is busy for the first on-ms of every period of
 * (on-ms + off-ms): with 6 and 42 this is the antagonist that hurts a scheduler most, as it sleeps long enough
 * to be owed CPU time and then takes it in one piece. Periods lie on one grid of CLOCK_MONOTONIC for all threads, so
 * they start together; a thread that was kept off the CPU for whole periods skips them rather than catching up.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_THREADS = 512, NS_PER_MS = 1000000, NS_PER_S = 1000000000 };

struct wave {
    int64_t start_ns;
    int64_t on_ns;
    int64_t off_ns;
};

static struct wave wave;

static int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * NS_PER_S + now.tv_nsec;
}

static void sleep_until(int64_t when_ns)
{
    struct timespec when = {.tv_sec = when_ns / NS_PER_S, .tv_nsec = when_ns % NS_PER_S};

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL) == EINTR)
        ;
}

/* Some tens of microseconds of arithmetic between two looks at the clock; volatile keeps the compiler from
 * removing it. */
static void work(void)
{
    volatile uint64_t x = 88172645463325252u;

    for (int i = 0; i < 4096; i++)
        x = x * 6364136223846793005u + 1442695040888963407u;
}

static void *run(void *cpu)
{
    int64_t period_ns = wave.on_ns + wave.off_ns;
    cpu_set_t only;

    CPU_ZERO(&only);
    CPU_SET((int)(intptr_t)cpu, &only);
    /* Fewer vCPUs than threads is no error: the thread then floats. */
    (void)pthread_setaffinity_np(pthread_self(), sizeof(only), &only);

    while (wave.off_ns == 0)
        work();
    for (;;) {
        int64_t began_ns = wave.start_ns + (now_ns() - wave.start_ns) / period_ns * period_ns;

        while (now_ns() < began_ns + wave.on_ns)
            work();
        sleep_until(began_ns + period_ns);
    }
    return NULL;
}

/* The value of "--name VALUE", a whole number from low to high; ends the program when there is none. */
static int64_t option(int argc, char **argv, const char *name, int64_t low, int64_t high)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        char *end;
        long long value;

        if (strcmp(argv[i], name) != 0)
            continue;
        errno = 0;
        value = strtoll(argv[i + 1], &end, 10);
        if (errno == 0 && *end == '\0' && end != argv[i + 1] && value >= low && value <= high)
            return value;
    }
    fprintf(stderr, "batch: %s needs a whole number from %lld to %lld\n", name, (long long)low, (long long)high);
    exit(2);
}

int main(int argc, char **argv)
{
    int threads = (int)option(argc, argv, "--threads", 1, MAX_THREADS);
    pthread_t thread;

    wave.on_ns = option(argc, argv, "--on-ms", 1, 3600000) * NS_PER_MS;
    wave.off_ns = option(argc, argv, "--off-ms", 0, 3600000) * NS_PER_MS;
    if (strcmp(argv[argc - 1], "--check") == 0)
        return 0;
    wave.start_ns = now_ns();
    for (intptr_t cpu = 1; cpu < threads; cpu++) {
        int error = pthread_create(&thread, NULL, run, (void *)cpu);

        if (error != 0) {
            fprintf(stderr, "batch: cannot start thread %d: %s\n", (int)cpu, strerror(error));
            return 1;
        }
    }
    run((void *)0);
    return 0;
}
