// SPDX-License-Identifier: GPL-2.0
/* Run time and run-queue wait of many threads at once, as they are in /proc/TID/schedstat, and whether anything else
 * of them has changed.
 *
 * find_thread runs once for each thread: a task iterator that the reader opens on that thread alone. It notes where the
 * kernel keeps the thread. read_threads, which the reader runs, then goes there directly: no walk over the tasks of the
 * host, no look-up and no text. take_sample does so by a timer, for the waits that the guard watches.
 *
 * A thread that has ended is not held: its memory may be another one's by now, or nobody's. So every access may fail,
 * and what is found counts only with the same id and start time, and while it has not exited.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;

#include "../tap/tap.h"
#include "threads.h"

/* The types of the kernel with the members that are used: where they lie is found when this is loaded (CO-RE). */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sched_entity {
	u64 sum_exec_runtime;
};

struct sched_info {
	unsigned long long run_delay;
};

struct cpumask {
	unsigned long bits[1];
};

struct signal_struct {
	int nr_threads;
};

struct task_struct {
	struct sched_entity se;
	struct cpumask cpus_mask;
	struct sched_info sched_info; /* CONFIG_SCHED_INFO */
	int exit_state;
	int pid;
	int tgid;
	u64 start_time;
	struct signal_struct *signal;
};

struct bpf_iter_meta;

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

#pragma clang attribute pop

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct wanted);
} thread_wanted SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MOST_THREADS);
	__type(key, u32);
	__type(value, struct place);
} thread_places SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct times);
} thread_times SEC(".maps");

/* Places that are looked at more often than the others, for nothing but their wait. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MOST_THREADS);
	__type(key, u32);
	__type(value, u32);
} thread_chosen SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct watch);
} thread_watch SEC(".maps");

/* What a map in judged_services is like. Types and not only sizes: Linux 6.1 takes no other map that has those. */
struct judged_map {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct service_key);
	__type(value, struct service);
} no_services SEC(".maps");

/* The program on taps' own map of services, which the reader puts here. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, u32);
	__array(values, struct judged_map);
} judged_services SEC(".maps");

struct alarm {
	struct bpf_timer timer;
};

/* Apart, because what has a timer cannot be mapped. It stops with the last descriptor of this map. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct alarm);
} thread_alarm SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536); /* a multiple of the size of a page, on every machine */
} thread_alarms SEC(".maps");

#define CLOCK_MONOTONIC 1 /* include/uapi/linux/time.h */

/* FNV-1a, by words: on at most 64 pCPUs no two affinities have the same. */
#define FNV_BASIS 0xcbf29ce484222325ULL
#define FNV_PRIME 0x100000001b3ULL

SEC("iter/task")
int find_thread(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct wanted *wanted;
	struct place *place;
	u32 key = 0;

	if (!task || !bpf_core_field_exists(task->sched_info))
		return 0;
	wanted = bpf_map_lookup_elem(&thread_wanted, &key);
	if (!wanted)
		return 0;
	key = wanted->place;
	place = bpf_map_lookup_elem(&thread_places, &key);
	if (!place)
		return 0;
	place->start_time = task->start_time;
	place->tid = task->pid;
	place->is_main = task->pid == task->tgid;
	place->task = (u64)task;
	return 0;
}

/* Whether the memory is that thread's still. */
static bool is_there(const struct place *place, struct task_struct *task)
{
	u64 start_time = 0;
	int pid = 0, exit_state = 1;

	bpf_core_read(&pid, sizeof(pid), &task->pid);
	bpf_core_read(&start_time, sizeof(start_time), &task->start_time);
	bpf_core_read(&exit_state, sizeof(exit_state), &task->exit_state);
	return pid == (int)place->tid && start_time == place->start_time && !exit_state;
}

/* See struct times. */
static u64 mark_of(struct task_struct *task, bool is_main, u64 mask_words)
{
	struct signal_struct *signal = NULL;
	u64 mark = FNV_BASIS, word, i;
	int nr_threads = 0;

	for (i = 0; i < MOST_MASK_WORDS && i < mask_words; i++) {
		word = 0;
		bpf_probe_read_kernel(&word, sizeof(word),
				      (char *)task + bpf_core_field_offset(task->cpus_mask) + 8 * i);
		mark = (mark ^ word) * FNV_PRIME;
	}
	if (is_main) {
		bpf_core_read(&signal, sizeof(signal), &task->signal);
		bpf_core_read(&nr_threads, sizeof(nr_threads), &signal->nr_threads);
		mark = (mark ^ (u32)nr_threads) * FNV_PRIME;
	}
	return mark == ENDED ? 1 : mark;
}

static long read_one(u32 index, void *context)
{
	struct reading *reading = context;
	u64 run_ns = 0, delay_ns = 0, mark;
	struct task_struct *task;
	struct place *place;
	struct times *times;
	u32 first = 0, key = index;

	times = bpf_map_lookup_elem(&thread_times, &first);
	place = bpf_map_lookup_elem(&thread_places, &key);
	if (!times || !place || index >= MOST_THREADS)
		return 1;
	task = (struct task_struct *)place->task;
	if (task) {
		bpf_core_read(&run_ns, sizeof(run_ns), &task->se.sum_exec_runtime);
		bpf_core_read(&delay_ns, sizeof(delay_ns), &task->sched_info.run_delay);
		mark = mark_of(task, place->is_main, reading->mask_words);
	}
	/* At last: who is there now was there before. */
	if (!task || !is_there(place, task))
		run_ns = delay_ns = mark = ENDED;
	times->run_ns[index] = run_ns;
	times->delay_ns[index] = delay_ns;
	times->mark[index] = mark;
	return 0;
}

SEC("syscall")
int read_threads(struct reading *reading)
{
	struct reading asked = *reading;

	bpf_loop(asked.count, read_one, &asked, 0);
	return 0;
}

/* Of the thread that is that one in thread_chosen. */
static u64 wait_of(u32 index)
{
	u32 key = index, *chosen;
	struct task_struct *task;
	struct place *place;
	u64 wait_ns = 0;

	chosen = bpf_map_lookup_elem(&thread_chosen, &key);
	if (!chosen)
		return GONE;
	key = *chosen;
	place = bpf_map_lookup_elem(&thread_places, &key);
	if (!place)
		return GONE;
	task = (struct task_struct *)place->task;
	if (task)
		bpf_core_read(&wait_ns, sizeof(wait_ns), &task->sched_info.run_delay);
	return task && is_there(place, task) ? wait_ns : GONE;
}

static long read_wait(u32 index, void *context)
{
	struct times *times;
	u32 first = 0;

	times = bpf_map_lookup_elem(&thread_times, &first);
	if (!times || index >= MOST_THREADS)
		return 1;
	times->wait_ns[index] = wait_of(index);
	return 0;
}

SEC("syscall")
int read_waits(struct reading *reading)
{
	bpf_loop(reading->count, read_wait, NULL, 0);
	return 0;
}

/* Of a sample: the time since the one before, and whether anybody waited too long. */
struct sample {
	u64 elapsed_ns;
	bool is_hot;
	bool is_late; /* an answer is, or may be */
};

static long watch_wait(u32 index, void *context)
{
	struct sample *sample = context;
	struct watch *watch;
	u64 before_ns, wait_ns;
	u32 first = 0;

	watch = bpf_map_lookup_elem(&thread_watch, &first);
	if (!watch || index >= MOST_WATCHED)
		return 1;
	before_ns = watch->wait_ns[index];
	wait_ns = wait_of(index);
	watch->before_ns[index] = before_ns;
	watch->wait_ns[index] = wait_ns;
	if (wait_ns == GONE || (wait_ns - before_ns) * WHOLE > watch->bound[index] * sample->elapsed_ns)
		sample->is_hot = true;
	return 0;
}

static long look_at_service(u32 index, void *context)
{
	struct sample *sample = context;
	struct service_key key;
	struct service *service;
	struct watch *watch;
	void *services;
	u64 asked, ended;
	u32 first = 0, now, before;

	watch = bpf_map_lookup_elem(&thread_watch, &first);
	services = bpf_map_lookup_elem(&judged_services, &first);
	if (!watch || !services || index >= MOST_JUDGED)
		return 1;
	before = watch->turn ? MOST_JUDGED + index : index;
	now = watch->turn ? index : MOST_JUDGED + index;
	watch->asked[now] = watch->asked[before];
	watch->ended[now] = watch->ended[before];
	watch->answers[now] = watch->answers[before];
	watch->late[now] = watch->late[before];
	key = *(struct service_key *)&watch->service[index];
	service = bpf_map_lookup_elem(services, &key);
	if (!service) /* nobody asked it yet */
		return 0;
	asked = service->other + service->http + service->http2 + service->memcached + service->memcached_binary +
		service->tls - service->noreply;
	ended = service->answers + service->untimed + service->unanswered;
	watch->asked[now] = asked;
	watch->ended[now] = ended;
	watch->answers[now] = service->answers;
	watch->late[now] = service->late;
	if (watch->late[now] != watch->late[before] || (asked != watch->asked[before] && ended == watch->ended[before]))
		sample->is_late = true;
	return 0;
}

static int take_sample(void *map, u32 *key, struct alarm *alarm)
{
	struct sample sample = {};
	struct watch *watch;
	u64 now_ns, *rung;
	u32 first = 0;

	watch = bpf_map_lookup_elem(&thread_watch, &first);
	if (!watch)
		return 0;
	now_ns = bpf_ktime_get_ns();
	sample.elapsed_ns = now_ns - watch->at_ns;
	bpf_loop(watch->count, watch_wait, &sample, 0);
	watch->from_ns = watch->at_ns;
	watch->at_ns = now_ns;
	watch->samples++;
	if (watch->judged && !(watch->samples & 1)) {
		bpf_loop(watch->judged, look_at_service, &sample, 0);
		if (!sample.is_late) {
			watch->turn = !watch->turn;
			watch->answers_ns = now_ns;
		}
	}
	if (sample.is_hot || sample.is_late) {
		rung = bpf_ringbuf_reserve(&thread_alarms, sizeof(*rung), 0);
		if (rung) { /* else it rings already */
			*rung = now_ns;
			bpf_ringbuf_submit(rung, BPF_RB_FORCE_WAKEUP);
		}
	} else {
		bpf_timer_start(&alarm->timer, watch->interval_ns, 0);
	}
	watch->took_ns += bpf_ktime_get_ns() - now_ns;
	return 0;
}

SEC("syscall")
int start_watch(struct start *start)
{
	struct alarm *alarm;
	u32 first = 0;

	alarm = bpf_map_lookup_elem(&thread_alarm, &first);
	if (!alarm)
		return 1;
	bpf_timer_init(&alarm->timer, &thread_alarm, CLOCK_MONOTONIC); /* only the first time */
	if (!bpf_timer_set_callback(&alarm->timer, take_sample))
		start->is_started = !bpf_timer_start(&alarm->timer, start->delay_ns, 0);
	return 0;
}

/* No sample is under way afterwards. */
SEC("syscall")
int stop_watch(struct start *start)
{
	struct alarm *alarm;
	u32 first = 0;

	alarm = bpf_map_lookup_elem(&thread_alarm, &first);
	if (alarm)
		bpf_timer_cancel(&alarm->timer);
	return 0;
}

char _license[] SEC("license") = "GPL";
