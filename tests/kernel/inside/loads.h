/* Time, and work that takes some, for the loads of the experiments. */
#ifndef LOADS_H
#define LOADS_H
#include <errno.h>
#include <stdint.h>
#include <time.h>

enum { NS_PER_US = 1000, NS_PER_MS = 1000000, NS_PER_S = 1000000000 };

static int64_t clock_ns(clockid_t clock)
{
    struct timespec now = {0};

    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * NS_PER_S + now.tv_nsec;
}

static int64_t now_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

static void sleep_until(int64_t when_ns)
{
    struct timespec when = {.tv_sec = when_ns / NS_PER_S, .tv_nsec = when_ns % NS_PER_S};

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL) == EINTR)
        ;
}

/* Not inlined: the loop is to be the same one when it is measured. Nothing but instructions that do nothing: where time is
 * counted in them, an emulator has to do nothing for that either, and is many times as fast. */
__attribute__((noinline, noclone)) static void work(int64_t iterations)
{
    for (int64_t i = 0; i < iterations; i++)
        __asm__ volatile(".rept 30\n\tnop\n\t.endr");
}

#endif
