/* A process that looks like QEMU from outside, for benchmarks: cheap enough for a thousand of them.
 *
 * usage: qemu_like NAME UUID VCPUS
 *
 * Its threads are named as QEMU's with debug-threads=on. It writes one byte when they are, and sleeps until its standard
 * input ends, so that it never outlives the benchmark. On SIGUSR1 each vCPU thread computes for two milliseconds.
 */

#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define BURST_NS 2000000L
#define STACK_BYTES (64 * 1024)

static sem_t bursts;
static int vcpus;

static void *never(void *unused)
{
	(void)unused;
	for (;;)
		pause();
	return NULL;
}

static long thread_cpu_ns(void)
{
	struct timespec used;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
	return used.tv_sec * 1000000000L + used.tv_nsec;
}

static void *vcpu(void *unused)
{
	(void)unused;
	for (;;) {
		while (sem_wait(&bursts) != 0)
			;
		for (long end = thread_cpu_ns() + BURST_NS; thread_cpu_ns() < end;)
			;
	}
	return NULL;
}

static void on_usr1(int number)
{
	(void)number;
	for (int i = 0; i < vcpus; i++)
		sem_post(&bursts);
}

static void start(void *(*run)(void *), const char *name)
{
	pthread_attr_t attributes;
	pthread_t thread;

	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, STACK_BYTES);
	if (pthread_create(&thread, &attributes, run, NULL) != 0 || pthread_setname_np(thread, name) != 0)
		exit(1);
}

int main(int argc, char **argv)
{
	struct sigaction action = {.sa_handler = on_usr1};
	sigset_t usr1;
	char name[32], byte;

	if (argc != 4)
		return 2;
	vcpus = atoi(argv[3]);
	sem_init(&bursts, 0, 0);
	sigemptyset(&usr1);
	sigaddset(&usr1, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &usr1, NULL); /* inherited: the main thread alone takes it */
	start(never, "IO mon_iothread");
	for (int i = 0; i < vcpus; i++) {
		snprintf(name, sizeof(name), "CPU %d/KVM", i);
		start(vcpu, name);
	}
	prctl(PR_SET_NAME, "qemu-system-x86");
	sigaction(SIGUSR1, &action, NULL);
	pthread_sigmask(SIG_UNBLOCK, &usr1, NULL);
	if (write(STDOUT_FILENO, "r", 1) != 1)
		return 1;
	while (read(STDIN_FILENO, &byte, 1) != 0)
		; /* a signal interrupts it, and nobody ever writes */
	return 0;
}
