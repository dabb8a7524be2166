/* Loads of the experiments with schedulers. Each prints one line of JSON when it ends.
 *
 *   load spin DURATION_MS                     uses all CPU time that it gets
 *   load wave ON_MS OFF_MS DURATION_MS        the square wave: wants ON_MS of CPU time at one go, then sleeps
 *   load serve PERIOD_US WORK_US DURATION_MS [SEED]
 *       a service: every PERIOD_US a request arrives that takes WORK_US of CPU time in all; with a seed at random times
 *       (Poisson), that often on average
 *   load forks WORK_US DURATION_MS            starts a process that takes WORK_US, waits for its end, and so on
 *   load quota PERIOD_US PID QUOTA_US [PID QUOTA_US]
 *       stops a process that used QUOTA_US of CPU time in a period until the next begins, as the kernel's throttling of
 *       real-time groups does, which Debian's kernels have not; what it used too much counts in the next one
 *
 * "serve" is an open loop: requests arrive whatever became of the ones before, and the response time counts from
 * the arrival. A request takes a number of iterations that was measured before all begins, so that the experiments must
 * start it while nothing else runs; it then waits for a line on standard input. All of it works best on one CPU of a machine
 * whose time is counted in instructions.
 */
#define _GNU_SOURCE
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../loads.h"

enum { CALIBRATION = 440000, SAMPLES = 100, MAX_REQUESTS = 200000 };

/* Iterations for one millisecond. */
static int64_t calibrate(void)
{
    int64_t began_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);

    work(CALIBRATION);
    return (int64_t)CALIBRATION * NS_PER_MS / (clock_ns(CLOCK_THREAD_CPUTIME_ID) - began_ns);
}

/* Iterations for a request that takes `work_ns` of CPU time together with going to sleep and waking up for it, so that a
 * load of 80 % is one. */
static int64_t iterations_of_request(int64_t work_ns)
{
    int64_t per_ms = calibrate(), used_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);

    for (int i = 0; i < SAMPLES; i++) {
        sleep_until(now_ns() + 20 * NS_PER_US);
        work(per_ms / 50);
        (void)now_ns();
    }
    used_ns = (clock_ns(CLOCK_THREAD_CPUTIME_ID) - used_ns) / SAMPLES - NS_PER_MS / 50;
    return per_ms * (work_ns - used_ns) / NS_PER_MS;
}

static int ascending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

static void wait_for_start(void)
{
    puts("{\"ready\": true}");
    fflush(stdout);
    (void)getchar();
}

/* The time to the next request. xorshift64*, so that a seed gives the same arrivals everywhere. */
static int64_t interval_ns(int64_t period_ns, uint64_t *seed)
{
    if (*seed == 0)
        return period_ns;
    *seed ^= *seed >> 12;
    *seed ^= *seed << 25;
    *seed ^= *seed >> 27;
    return -log(1.0 - (*seed * 2685821657736338717u >> 11) * 0x1p-53) * period_ns;
}

static void serve(int64_t period_ns, int64_t work_ns, int64_t duration_ns, uint64_t seed)
{
    static int64_t took_ns[MAX_REQUESTS];
    int64_t iterations = iterations_of_request(work_ns), begin_ns, used_ns, end_ns, count = 0;

    wait_for_start();
    used_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    begin_ns = now_ns();
    for (int64_t at_ns = 0; at_ns < duration_ns && count < MAX_REQUESTS; at_ns += interval_ns(period_ns, &seed)) {
        if (now_ns() < begin_ns + at_ns)
            sleep_until(begin_ns + at_ns);
        work(iterations);
        took_ns[count++] = now_ns() - begin_ns - at_ns;
    }
    end_ns = now_ns();
    used_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - used_ns;
    qsort(took_ns, count, sizeof(*took_ns), ascending);
    printf("{\"requests\": %lld, \"used_ns\": %lld, \"wall_ns\": %lld, ", (long long)count, (long long)used_ns,
           (long long)(end_ns - begin_ns));
    printf("\"p50_us\": %.1f, \"p95_us\": %.1f, \"p99_us\": %.1f, \"max_us\": %.1f}\n", took_ns[count / 2] / 1e3,
           took_ns[count * 95 / 100] / 1e3, took_ns[count * 99 / 100] / 1e3, took_ns[count - 1] / 1e3);
}

static void use(int64_t on_ns, int64_t off_ns, int64_t duration_ns)
{
    int64_t iterations = calibrate() / 50, begin_ns, used_ns; /* 20 us */

    wait_for_start();
    used_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    begin_ns = now_ns();
    while (now_ns() < begin_ns + duration_ns) {
        int64_t wave_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);

        do
            work(iterations);
        while (clock_ns(CLOCK_PROCESS_CPUTIME_ID) - wave_ns < on_ns && now_ns() < begin_ns + duration_ns);
        if (off_ns)
            sleep_until(now_ns() + off_ns);
    }
    used_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - used_ns;
    printf("{\"used_ns\": %lld, \"wall_ns\": %lld}\n", (long long)used_ns, (long long)(now_ns() - begin_ns));
}

static void forks(int64_t work_ns, int64_t duration_ns)
{
    int64_t iterations = calibrate() * work_ns / NS_PER_MS, begin_ns, count = 0;

    wait_for_start();
    for (begin_ns = now_ns(); now_ns() < begin_ns + duration_ns; count++) {
        pid_t child = fork();

        if (child == 0) {
            work(iterations);
            _exit(0);
        }
        if (child < 0 || waitpid(child, NULL, 0) != child)
            break;
        sleep_until(now_ns() + work_ns);
    }
    printf("{\"forks\": %lld}\n", (long long)count);
}

/* It looks again when the first of them can have used what it has left, so that it hardly costs any time. */
static void limit(int64_t period_ns, const int64_t *number, int count)
{
    clockid_t clock[2];
    int64_t begun_ns[2], end_ns;
    bool stopped[2] = {false, false};

    for (int i = 0; i < count; i++)
        if (clock_getcpuclockid(number[2 * i], &clock[i]))
            return;
    wait_for_start();
    for (int i = 0; i < count; i++)
        begun_ns[i] = clock_ns(clock[i]);
    for (end_ns = now_ns() + period_ns;; end_ns += period_ns) {
        for (int64_t now = now_ns(), next_ns; now < end_ns; sleep_until(next_ns), now = now_ns()) {
            next_ns = end_ns;
            for (int i = 0; i < count; i++) {
                int64_t left_ns = begun_ns[i] + number[2 * i + 1] * NS_PER_US - clock_ns(clock[i]);

                if (!stopped[i] && left_ns <= 0)
                    stopped[i] = kill(number[2 * i], SIGSTOP) == 0;
                else if (!stopped[i] && now + left_ns < next_ns)
                    next_ns = now + left_ns;
            }
        }
        for (int i = 0; i < count; i++) {
            int64_t used_ns = clock_ns(clock[i]) - begun_ns[i], quota_ns = number[2 * i + 1] * NS_PER_US;

            begun_ns[i] += used_ns < quota_ns ? used_ns : quota_ns;
            if (stopped[i])
                stopped[i] = kill(number[2 * i], SIGCONT) != 0;
        }
    }
}

int main(int argc, char **argv)
{
    int64_t number[5] = {0};

    prctl(PR_SET_TIMERSLACK, 1UL); /* else every wake-up is 50 us late */
    for (int i = 2; i < argc && i < 7; i++)
        number[i - 2] = atoll(argv[i]);
    if (argc == 3 && strcmp(argv[1], "spin") == 0)
        use(NS_PER_MS, 0, number[0] * NS_PER_MS);
    else if (argc == 5 && strcmp(argv[1], "wave") == 0)
        use(number[0] * NS_PER_MS, number[1] * NS_PER_MS, number[2] * NS_PER_MS);
    else if ((argc == 5 || argc == 6) && strcmp(argv[1], "serve") == 0)
        serve(number[0] * NS_PER_US, number[1] * NS_PER_US, number[2] * NS_PER_MS, number[3]);
    else if (argc == 4 && strcmp(argv[1], "forks") == 0)
        forks(number[0] * NS_PER_US, number[1] * NS_PER_MS);
    else if ((argc == 5 || argc == 7) && strcmp(argv[1], "quota") == 0)
        limit(number[0] * NS_PER_US, number + 1, argc / 2 - 1);
    else
        return 2;
    return fflush(stdout) != 0;
}
