/* SPDX-License-Identifier: GPL-2.0 */
/* Who is ahead of whom, and when that is to be looked at again. equipoise_bvt.bpf.c explains it. */
#ifndef EQUIPOISE_COMPETE_H
#define EQUIPOISE_COMPETE_H

#include "state.bpf.h"

/* The effective virtual time of what runs on a CPU, now, in the shared tree's time. */
static __always_inline u64 running_key(const struct cpu_ctx *c, u64 now_ns)
{
	u64 ran_ns = now_ns > c->started_ns ? now_ns - c->started_ns : 0;

	return c->key + ((ran_ns * c->rate) >> RATE_SHIFT);
}

static __always_inline u64 shared_key(const struct task_ctx *tc, u64 key, const struct cpu_ctx *c)
{
	return tc->tree == SHARED ? key : key - c->offset;
}

static int reevaluate(void *map, u32 *cpu, struct cpu_ctx *c)
{
	c->wakes_ns = 0;
	COUNT(reevaluations, 1);
	scx_bpf_kick_cpu(*cpu, SCX_KICK_PREEMPT);
	return 0;
}

/* Take a decision again in `after_ns`, unless that is to happen earlier anyway. */
static __always_inline void reevaluate_in(struct cpu_ctx *c, u64 now_ns, u64 after_ns)
{
	if (after_ns < grace_ns)
		after_ns = grace_ns;
	if (after_ns >= slice_ns || (c->wakes_ns > now_ns && c->wakes_ns <= now_ns + after_ns))
		return;
	c->wakes_ns = now_ns + after_ns;
	bpf_timer_start(&c->timer, after_ns, 0);
}

/* A task that woke up against the one that runs on a CPU. */
static __always_inline void challenge(s32 cpu, struct task_ctx *tc)
{
	u64 now_ns = scx_bpf_now(), allowance, key, running;
	struct cpu_ctx *c = cpu_of(cpu);
	s64 behind;

	if (!c || !c->busy)
		return;
	key = shared_key(tc, tc->key, c);
	running = running_key(c, now_ns);
	allowance = tc->warp > c->warp ? 0 : (allowance_ns * tc->rate) >> RATE_SHIFT;
	behind = (s64)(running - key - allowance);
	if (behind <= 0) {
		reevaluate_in(c, now_ns, ((u64)-behind << RATE_SHIFT) / (c->rate ?: 1));
		return;
	}
	COUNT(preemptions, 1);
	if ((s64)(running - key - tc->warp - ((allowance_ns * tc->rate) >> RATE_SHIFT)) <= 0)
		COUNT(warped_preemptions, 1);
	/* The next one that wakes up is to see who comes, not who goes. */
	c->key = key;
	c->rate = tc->rate;
	c->warp = tc->warp;
	c->started_ns = now_ns;
	scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
}

/* Of the CPUs that a task may use the one whose task has the least claim on it. */
static __always_inline s32 weakest(struct task_struct *p)
{
	u64 now_ns = scx_bpf_now(), most = 0;
	s32 found = -1;
	u32 cpu;

	bpf_for(cpu, 0, nr_cpus) {
		struct cpu_ctx *c = cpu_of(cpu);
		u64 key;

		if (!c || !c->busy || !bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
			continue;
		key = running_key(c, now_ns);
		if (found < 0 || (s64)(key - most) > 0) {
			found = cpu;
			most = key;
		}
	}
	return found;
}

/* Keep a CPU's own time near the shared tree's: its pinned tasks cannot be owed what other CPUs give, and do not owe
 * what nobody else `wanted`. */
static __always_inline void align(struct cpu_ctx *c, u64 own, s64 least, bool wanted)
{
	struct bvt_node *root = node_of(root_cgid, SHARED);
	s64 ahead = root ? (s64)(own - clock_of(root)) : 0;

	if (ahead < least)
		c->offset += ahead - least;
	else if (ahead > 0 && !wanted)
		c->offset += ahead;
}

static __always_inline void starts(struct task_struct *p, struct task_ctx *tc, s32 cpu, struct cpu_ctx *c, u64 head,
				   bool contended)
{
	u64 now_ns = scx_bpf_now(), least_ns = now_ns - tc->queued_ns < max_wait_ns ? allowance_ns : rescue_ns;
	s64 before;

	tc->queued_ns = now_ns;
	c->key = shared_key(tc, tc->key, c);
	c->rate = tc->rate;
	c->warp = tc->warp;
	c->started_ns = now_ns;
	c->busy = 1;
	if (!contended)
		return;
	before = (s64)(head - c->key);
	if (before < 0)
		before = 0;
	if (before > (1LL << 40))
		before = 1LL << 40;
	reevaluate_in(c, now_ns, least_ns + ((u64)before << RATE_SHIFT) / (c->rate ?: 1));
}

/* The effective virtual time of the first task in a queue that may run on a CPU. */
static __always_inline bool first_of(u64 dsq, s32 cpu, u64 *key)
{
	struct task_struct *p;
	bool found = false;

	bpf_for_each(scx_dsq, p, dsq, 0) {
		if (!bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
			continue;
		*key = p->scx.dsq_vtime;
		found = true;
		break;
	}
	return found;
}

/* Take a task that waited too long, because its weight is tiny or there are very many, out of a queue. Its virtual
 * time is not changed: it goes on to pay for what it had. */
static __always_inline bool rescue(u64 dsq, s32 cpu, u64 now_ns)
{
	struct task_struct *p;
	bool found = false;

	bpf_for_each(scx_dsq, p, dsq, 0) {
		struct task_ctx *tc = ctx_of(p);

		if (!tc || now_ns - tc->queued_ns < max_wait_ns || !bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
			continue;
		found = scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL, 0);
		break;
	}
	return found;
}

/* Let a running task go on. */
static __always_inline void prolong(struct task_struct *p)
{
	if (bpf_ksym_exists(scx_bpf_task_set_slice))
		scx_bpf_task_set_slice(p, slice_ns);
	else
		p->scx.slice = slice_ns;
}

/* The best of a CPU's two queues; 0: both are empty. */
static __always_inline u64 best_queue(s32 cpu, struct cpu_ctx *c, u64 *key)
{
	u64 own = 0, shared = 0;
	bool any_own = nr_online > 1 && first_of(cpu + 2, cpu, &own), any_shared = first_of(SHARED + 1, cpu, &shared);

	if (any_own)
		own -= c->offset;
	if (any_own && (!any_shared || (s64)(own - shared) <= 0)) {
		*key = own;
		return cpu + 2;
	}
	*key = shared;
	return any_shared ? SHARED + 1 : 0;
}

#endif
