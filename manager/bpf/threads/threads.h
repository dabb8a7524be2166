/* SPDX-License-Identifier: GPL-2.0 */
/* What the program on threads and those who read its maps share. manager/bpf/threads/__init__.py reads this file too:
 * integers, and structs of u64.
 */
#ifndef EQUIPOISE_THREADS_H
#define EQUIPOISE_THREADS_H

#define MOST_THREADS 16384
#define MOST_MASK_WORDS 128 /* of 64 pCPUs each */
#define MOST_WATCHED 1024 /* of those in thread_chosen */
#define MOST_JUDGED 256 /* services whose answers are watched */
#define WHOLE 1048576 /* of a time, as a bound of a wait */

/* Value of thread_wanted: the place that the next thread which is found is to get. */
struct wanted {
	u64 place;
};

/* Value of thread_places: which thread is read there. */
struct place {
	u64 task; /* its address; 0: none */
	u64 start_time; /* it and the id tell that it is still this thread's */
	u64 tid;
	u64 is_main; /* of its process */
};

/* What the reader asks of a reading. */
struct reading {
	u64 count; /* of the places, or of those in thread_chosen: the first ones */
	u64 mask_words; /* of an affinity */
};

/* Value of thread_times, which is mapped into the reader's memory: by place, of each thread. ENDED as its mark: it is
 * gone. Any other mark changes with its affinity and, for a main thread, with the number of threads of its process, and
 * tells nothing else.
 */
#define ENDED 0
#define GONE 0xffffffffffffffff
struct times {
	u64 run_ns[MOST_THREADS]; /* as in /proc/TID/schedstat */
	u64 delay_ns[MOST_THREADS];
	u64 mark[MOST_THREADS];
	u64 wait_ns[MOST_THREADS]; /* delay_ns of those in thread_chosen, in that order; GONE: it is */
};

/* Value of thread_watch, which is mapped, too, and written by the reader while nothing is watched. From start_watch on
 * the kernel takes a sample each interval_ns, until a wait in it is above its bound, or a thread is gone: then it says
 * so in thread_alarms, and takes none until it is started again. With every other sample it looks at the answers of
 * services, too, in the map of the program on taps that is in judged_services: it says so, where one answered anything
 * late since it was looked at before, or was asked and has ended nothing.
 */
struct watch {
	u64 interval_ns;
	u64 count; /* of those in thread_chosen: the first ones */
	u64 from_ns; /* of CLOCK_MONOTONIC: the sample before the last */
	u64 at_ns; /* the last */
	u64 samples; /* that were taken in all */
	u64 took_ns; /* the time that they took */
	u64 judged; /* services */
	u64 answers_ns; /* when all of them answered in time */
	u64 turn; /* where what they had answered then is: 0: the first halves, else the second ones */
	u64 before_ns[MOST_WATCHED]; /* the waits at from_ns */
	u64 wait_ns[MOST_WATCHED]; /* at at_ns; GONE: that thread is */
	u64 bound[MOST_WATCHED]; /* of the time between them, in parts of WHOLE */
	u64 service[MOST_JUDGED]; /* keys of judged_services */
	u64 asked[2 * MOST_JUDGED];
	u64 ended[2 * MOST_JUDGED];
	u64 answers[2 * MOST_JUDGED];
	u64 late[2 * MOST_JUDGED];
};

/* What start_watch is told, and tells. */
struct start {
	u64 delay_ns; /* until the first sample */
	u64 is_started;
};

#endif
