/* Threads like those of VMs, in control groups, and how long the critical ones wait for a pCPU after each wake-up.
 *
 *   crowd SETTLE_MS DURATION_MS < LINES     each line one process: NAME GROUP CPUS KIND [NUMBER [NUMBER]]
 *
 * CPUS is a mask (3: the first two). Kinds:
 *   spin                  uses all CPU time that it gets
 *   beat BURST_MS PAUSE_MS   10 us of work and 15 us of sleep by turns for a while, then a pause: an emulator's main loop
 *   wake WORK_US SLEEP_US    sleeps 0.5 to 1.5 times SLEEP_US, at random but always alike, then works: a critical vCPU
 *   fifo WORK_US SLEEP_US    the same with a real-time priority: what the machine itself makes of it
 *
 * All begin together. After SETTLE_MS the delays of DURATION_MS count. Prints one line of JSON: a list, in the order of
 * the lines, of {"used": CPUs used, "delays_us": [...]}, the delays of those that wake up.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../loads.h"

enum { CALIBRATION = 44000, MOST = 64, SAMPLES = 100000 };

struct member {
    pid_t pid;
    int64_t used_ns, count;
    float delays_us[SAMPLES];
};

static struct {
    volatile int64_t begin_ns, count_from_ns;
    struct member members[MOST];
} *shared;

static double iterations_per_us;

static void wake(struct member *me, int64_t work_us, int64_t sleep_us, uint64_t seed)
{
    for (;;) {
        int64_t due_ns, woken_ns;

        seed = seed * 6364136223846793005u + 1442695040888963407u;
        due_ns = now_ns() + sleep_us * NS_PER_US / 2 + (int64_t)(seed >> 33) % (sleep_us * NS_PER_US);
        sleep_until(due_ns);
        woken_ns = now_ns();
        if (due_ns >= shared->count_from_ns && me->count < SAMPLES)
            me->delays_us[me->count++] = (woken_ns - due_ns) / 1e3f;
        work(work_us * iterations_per_us);
    }
}

static void beat(int64_t burst_ms, int64_t pause_ms)
{
    for (;;) {
        for (int64_t end_ns = now_ns() + burst_ms * NS_PER_MS; now_ns() < end_ns; sleep_until(now_ns() + 15 * NS_PER_US))
            work(10 * iterations_per_us);
        sleep_until(now_ns() + pause_ms * NS_PER_MS);
    }
}

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void join(const char *group, unsigned long mask)
{
    cpu_set_t cpus;
    char path[640];
    int file;

    snprintf(path, sizeof(path), "%s/cgroup.procs", group);
    file = open(path, O_WRONLY);
    if (file < 0 || write(file, "0", 1) != 1 || close(file))
        fail(path);
    CPU_ZERO(&cpus);
    for (int cpu = 0; cpu < 64; cpu++)
        if (mask >> cpu & 1)
            CPU_SET(cpu, &cpus);
    if (sched_setaffinity(0, sizeof(cpus), &cpus))
        fail("sched_setaffinity");
}

static void be(int policy, int priority)
{
    struct sched_param param = {.sched_priority = priority};

    if (sched_setscheduler(0, policy, &param))
        fail("sched_setscheduler");
}

static void member(int index, const char *group, unsigned long mask, const char *kind, int64_t first, int64_t second)
{
    join(group, mask);
    if (strcmp(kind, "fifo") == 0)
        be(SCHED_FIFO, 10);
    else
        be(SCHED_OTHER, 0);
    while (!shared->begin_ns)
        sleep_until(now_ns() + NS_PER_MS);
    sleep_until(shared->begin_ns);
    if (strcmp(kind, "spin") == 0)
        for (;;)
            work(1000000);
    if (strcmp(kind, "beat") == 0)
        beat(first, second);
    wake(&shared->members[index], first, second, index + 1);
}

int main(int argc, char **argv)
{
    int64_t settle_ns, duration_ns, begun_ns;
    char name[16], group[512], kind[16];
    unsigned long mask;
    char line[640];
    int count = 0;
    pid_t pid;

    if (argc != 3)
        return 2;
    settle_ns = atoll(argv[1]) * NS_PER_MS;
    duration_ns = atoll(argv[2]) * NS_PER_MS;
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        fail("mmap");
    prctl(PR_SET_TIMERSLACK, 1UL); /* else every wake-up is 50 us late */
    be(SCHED_FIFO, 50);
    begun_ns = now_ns();
    work(CALIBRATION);
    iterations_per_us = (double)CALIBRATION * NS_PER_US / (now_ns() - begun_ns);
    while (count < MOST && fgets(line, sizeof(line), stdin)) {
        long long first = 0, second = 0;

        if (sscanf(line, "%15s %511s %lu %15s %lld %lld", name, group, &mask, kind, &first, &second) < 4)
            return 2;
        pid = fork();
        if (pid < 0)
            fail("fork");
        if (pid == 0 && prctl(PR_SET_NAME, name) == 0)
            member(count, group, mask, kind, first, second);
        shared->members[count++].pid = pid;
    }
    sleep_until(now_ns() + 20 * NS_PER_MS);
    begun_ns = now_ns() + 2 * NS_PER_MS;
    shared->count_from_ns = begun_ns + settle_ns;
    shared->begin_ns = begun_ns;
    for (int pass = 0; pass < 2; pass++) {
        sleep_until(begun_ns + settle_ns + pass * duration_ns);
        for (int i = 0; i < count; i++) {
            clockid_t clock;

            if (clock_getcpuclockid(shared->members[i].pid, &clock))
                return 1;
            shared->members[i].used_ns = clock_ns(clock) - shared->members[i].used_ns;
        }
    }
    for (int i = 0; i < count; i++)
        kill(shared->members[i].pid, SIGKILL);
    while (wait(NULL) > 0)
        ;
    putchar('[');
    for (int i = 0; i < count; i++) {
        struct member *each = &shared->members[i];

        printf("%s{\"used\": %.4f, \"delays_us\": [", i ? ", " : "", (double)each->used_ns / duration_ns);
        for (int64_t j = 0; j < each->count; j++)
            printf("%s%.0f", j ? "," : "", each->delays_us[j]);
        printf("]}");
    }
    puts("]");
    return fflush(stdout) != 0;
}
