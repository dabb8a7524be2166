/* SPDX-License-Identifier: GPL-2.0 */
/* Borrowed Virtual Time for control groups, as a sched_ext program.
 *
 * THE ALGORITHM (Duda & Cheriton, SOSP 1999; Leverich & Kozyrakis, EuroSys 2014, section 4.3.4). Whoever runs for d
 * nanoseconds advances its virtual time by d * 1024 / weight, and the one that is furthest behind runs: so CPU time
 * divides as the weights do. A warp is subtracted from the virtual time whenever two are compared, and nowhere else:
 *
 *     effective virtual time = virtual time - warp
 *
 * Who has one is let in at once when it wakes up, as if it were owed the time: it borrows from its own future. What it
 * borrowed it has to pay back, because its virtual time advances as everybody's does, so that it gets promptness but
 * not a larger share. Once it has run ahead of the others by its warp it waits like anyone else.
 *
 *  - Allowance (C): who runs is not put off for fairness' sake before allowance_ns; a task that wakes up takes the CPU
 *    at once when it is ahead of the running one by more than that, or has a larger warp and is ahead at all.
 *  - Place: who wakes up starts at its group's clock. It is not owed the time that it slept, but still owes what it
 *    did.
 *  - Grace (the 2014 paper's addition): if it just misses, a timer takes the decision again when the running task has
 *    used up its lead. Ticks are too coarse for that; grace_ns bounds the number of timers.
 *  - Limit: a task that ran on borrowed time for patience_ns has half its warp, and for its group's limit none, until it
 *    has paid back. So among tasks with warps one that has waited for that long comes first.
 *
 * THE TREE. Weights act among siblings, at every level of the control groups, as EEVDF's do: a VM's vCPUs share the
 * VM's part, VMs their slice's. Every group has a clock, the average virtual time of its members that want to run, and
 * is itself a member of its parent. The key by which a task is queued is found by walking up from it: how far it is
 * ahead of its group's clock, in the parent's time (times load / weight), plus how far the group is ahead, and so on.
 * Warps are subtracted where they belong: a group's in its parent's time. A queue is then sorted by one number. It
 * holds without sorting anew: when a sibling runs, the group's virtual time and its clock advance such that the keys
 * of those that wait remain what they were. (What changes them is who comes and goes; that lasts until the task was
 * queued again.)
 *
 * SEVERAL CPUS. Tasks that may choose their CPU are one tree with one queue, and every CPU takes the first that it may
 * run. Tasks of one CPU only are a tree and a queue of their own, for that CPU. A group that has tasks in several
 * trees divides its weight among them as its load is. A CPU compares the first of its own with the first of the shared
 * queue; `offset` relates the two clocks, and follows when they drift apart because pinned tasks want more, or less,
 * than a CPU.
 *
 * INVARIANTS
 *  1. A node's clock is the exact weighted average of its active members' virtual times (tree.bpf.h).
 *  2. Warps never change a virtual time.
 *  3. No member owes, or is owed, more than MAX_LAG_NS of CPU time; nor is any owed the time that it ran (on several
 *     CPUs one with more weight than a CPU's worth would be, without end).
 *  4. A CPU runs the first of its two queues, or goes on with what it runs if that is ahead of both; it is idle only
 *     when both are empty.
 *  5. No task waits for much more than max_wait_ns, so that the kernel's watchdog, at TIMEOUT_MS, only sees what is
 *     really lost: who did gets rescue_ns out of turn. Below a share of rescue_ns / max_wait_ns, 0.05 %, tasks get more
 *     than their weights say.
 *
 * WEAKNESSES
 *  - One lock for each group: that of the root is taken at every switch of every CPU. Beyond some dozens of CPUs the
 *    queue should be one for each cache.
 *  - The search for the CPU whose task has the least claim looks at all of them.
 *  - Tasks restricted to some, but more than one, CPUs are in the shared queue: where several such sets with different
 *    weights want more than their CPUs give, MAX_LAG_NS, not the weights, decides among them.
 *  - Caches: a task goes on where there is room. There is no notion of distance but the kernel's choice of an idle
 *    CPU.
 *  - cpu.max is not enforced while this scheduler is loaded; nor are the deadlines of latency that EEVDF takes from
 *    slices.
 */
#include "compete.bpf.h"

#define BPF_STRUCT_OPS(name, args...) SEC("struct_ops/" #name) BPF_PROG(name, ##args)
#define BPF_STRUCT_OPS_SLEEPABLE(name, args...) SEC("struct_ops.s/" #name) BPF_PROG(name, ##args)

char _license[] SEC("license") = "GPL";

s32 BPF_STRUCT_OPS(bvt_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	bool idle = false;
	s32 cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &idle);

	if (idle)
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_ns, 0);
	return cpu;
}

void BPF_STRUCT_OPS(bvt_runnable, struct task_struct *p, u64 enq_flags)
{
	struct task_ctx *tc = ctx_of(p);
	u64 tree = p->nr_cpus_allowed == 1 && nr_online > 1 ? bpf_cpumask_first(p->cpus_ptr) + 1 : SHARED;

	if (!tc)
		return;
	if (tc->tree != (s32)tree) {
		struct bvt_node *n = node_of(tc->cgid, tree);

		if (n) /* approximately: it may move meanwhile */
			tc->member.v = clock_of(n) + ((s64)tc->debt > 0 ? tc->debt : 0);
		tc->tree = tree;
	}
	if (tree != SHARED) {
		struct cpu_ctx *c = cpu_of(tree - 1);
		struct bvt_node *own = node_of(root_cgid, tree);

		if (c && own && !own->load)
			align(c, clock_of(own) - c->offset, 0, true);
	}
	tc->base_warp = tree != SHARED && (p->flags & PF_KTHREAD) ? kthread_warp_ns : 0;
	tc->used_ns = p->se.sum_exec_runtime;
	update(tc, 0, weight_of(p), 1);
}

void BPF_STRUCT_OPS(bvt_enqueue, struct task_struct *p, u64 enq_flags)
{
	struct task_ctx *tc = ctx_of(p);
	s32 cpu = scx_bpf_task_cpu(p);
	struct cpu_ctx *c = cpu_of(cpu);

	if (!tc || !c || c->offline) {
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_ns, enq_flags);
		return;
	}
	tc->queued_ns = scx_bpf_now();
	scx_bpf_dsq_insert_vtime(p, tc->tree + 1, slice_ns, tc->key, enq_flags);
	if (tc->tree == SHARED) {
		s32 idle = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);

		if (idle >= 0) {
			scx_bpf_kick_cpu(idle, SCX_KICK_IDLE);
			return;
		}
		cpu = weakest(p);
	} else {
		cpu = tc->tree - 1;
		scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
	}
	if (cpu >= 0 && (enq_flags & SCX_ENQ_WAKEUP))
		challenge(cpu, tc);
}

void BPF_STRUCT_OPS(bvt_dispatch, s32 cpu, struct task_struct *prev)
{
	struct cpu_ctx *c = cpu_of(cpu);
	bool may_move = false;
	u64 key = 0, queue, now_ns;

	if (!c)
		return;
	now_ns = scx_bpf_now();
	if (now_ns - c->searched_ns > search_ns) {
		if (rescue(cpu + 2, cpu, now_ns) || rescue(SHARED + 1, cpu, now_ns)) {
			COUNT(rescued, 1);
			return;
		}
		c->searched_ns = now_ns;
	}
	queue = best_queue(cpu, c, &key);
	if (prev && (prev->scx.flags & SCX_TASK_QUEUED)) {
		struct task_ctx *tc = ctx_of(prev);

		if (tc) {
			s32 idle = -1;

			charge_task(prev, tc);
			may_move = tc->tree == SHARED;
			/* Let it have another CPU, rather than keep pinned ones waiting. */
			if (may_move && queue == (u64)cpu + 2)
				idle = scx_bpf_pick_idle_cpu(prev->cpus_ptr, 0);
			if (idle >= 0) {
				scx_bpf_kick_cpu(idle, SCX_KICK_IDLE);
			} else if (!queue || (s64)(shared_key(tc, tc->key, c) - key) <= 0) {
				prolong(prev);
				starts(prev, tc, cpu, c, key, queue);
				return;
			}
		}
	}
	if (queue == (u64)cpu + 2)
		align(c, key, -MAX_LAG_NS, may_move || scx_bpf_dsq_nr_queued(SHARED + 1));
	if (queue && !scx_bpf_dsq_move_to_local(queue) && !scx_bpf_dsq_move_to_local(SHARED + 1))
		scx_bpf_dsq_move_to_local(cpu + 2);
}

void BPF_STRUCT_OPS(bvt_running, struct task_struct *p)
{
	struct task_ctx *tc = ctx_of(p);
	s32 cpu = scx_bpf_task_cpu(p);
	struct cpu_ctx *c = cpu_of(cpu);
	u64 key = 0, queue;

	if (!tc || !c)
		return;
	if (tc->cpu >= 0 && tc->cpu != cpu)
		COUNT(migrations, 1);
	tc->cpu = cpu;
	if (scx_bpf_now() - tc->weighed_ns > weigh_ns) {
		tc->weighed_ns = scx_bpf_now();
		weigh(p);
	}
	if (tc->tree == SHARED && nr_online > 1)
		update(tc, 0, weight_of(p), 0); /* the pace counts from here */
	queue = best_queue(cpu, c, &key);
	starts(p, tc, cpu, c, key, queue);
}

void BPF_STRUCT_OPS(bvt_stopping, struct task_struct *p, bool runnable)
{
	struct task_ctx *tc = ctx_of(p);
	struct cpu_ctx *c = cpu_of(scx_bpf_task_cpu(p));

	if (c)
		c->busy = 0;
	if (tc)
		charge_task(p, tc);
}

void BPF_STRUCT_OPS(bvt_quiescent, struct task_struct *p, u64 deq_flags)
{
	struct task_ctx *tc = ctx_of(p);

	if (tc)
		update(tc, 0, 0, -1);
}

s32 BPF_STRUCT_OPS(bvt_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	struct task_ctx *tc = bpf_task_storage_get(&tasks, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!tc)
		return -ENOMEM;
	tc->tree = -1;
	tc->cpu = -1;
	tc->cgid = args->cgroup->kn->id;
	return 0;
}

void BPF_STRUCT_OPS(bvt_cgroup_move, struct task_struct *p, struct cgroup *from, struct cgroup *to)
{
	struct task_ctx *tc = ctx_of(p);

	if (!tc)
		return;
	tc->cgid = to->kn->id;
	tc->tree = -1;
}

static __always_inline u64 weight_of_group(struct cgroup *cgrp)
{
	return shares_of((void *)BPF_CORE_READ(cgrp, subsys[bpf_core_enum_value(enum cgroup_subsys_id, cpu_cgrp_id)]))
		       ?: UNIT_WEIGHT;
}

s32 BPF_STRUCT_OPS(bvt_cgroup_init, struct cgroup *cgrp, struct scx_cgroup_init_args *args)
{
	struct cgroup *parent = BPF_CORE_READ(cgrp, self.parent, cgroup);
	struct bvt_group g = { .weight = weight_of_group(cgrp), .parent = parent ? BPF_CORE_READ(parent, kn, id) : 0 };
	u64 cgid = cgrp->kn->id;

	if (!parent)
		root_cgid = cgid;
	return bpf_map_update_elem(&groups, &cgid, &g, BPF_ANY);
}

void BPF_STRUCT_OPS(bvt_cgroup_exit, struct cgroup *cgrp)
{
	u64 cgid = cgrp->kn->id;
	u32 tree;

	bpf_map_delete_elem(&groups, &cgid);
	bpf_map_delete_elem(&equipoise_warps, &cgid);
	bpf_for(tree, 0, nr_cpus + 1) {
		struct node_key key = { .cgid = cgid, .tree = tree };

		bpf_map_delete_elem(&nodes, &key);
	}
}

void BPF_STRUCT_OPS(bvt_cgroup_set_weight, struct cgroup *cgrp, u32 weight)
{
	u64 cgid = cgrp->kn->id;
	struct bvt_group *g = bpf_map_lookup_elem(&groups, &cgid);

	if (g)
		g->weight = weight_of_group(cgrp);
}

void BPF_STRUCT_OPS(bvt_cpu_online, s32 cpu)
{
	struct cpu_ctx *c = cpu_of(cpu);

	if (c)
		c->offline = 0;
	__sync_fetch_and_add(&nr_online, 1);
}

/* The kernel pushes a CPU's tasks away as they come to run there, but asks nobody for them any more. */
static __always_inline void hand_over(u64 dsq, s32 cpu)
{
	struct task_struct *p;

	bpf_for_each(scx_dsq, p, dsq, 0) {
		if (scx_bpf_task_cpu(p) == cpu)
			scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL_ON | cpu, 0);
	}
}

void BPF_STRUCT_OPS(bvt_cpu_offline, s32 cpu)
{
	struct cpu_ctx *c = cpu_of(cpu);

	__sync_fetch_and_add(&nr_online, -1);
	if (!c)
		return;
	c->offline = 1;
	hand_over(cpu + 2, cpu);
	hand_over(SHARED + 1, cpu);
}

s32 BPF_STRUCT_OPS_SLEEPABLE(bvt_init)
{
	const struct cpumask *online = scx_bpf_get_online_cpumask();
	s32 error = scx_bpf_create_dsq(SHARED + 1, -1);
	u32 cpu;

	nr_cpus = scx_bpf_nr_cpu_ids();
	nr_online = bpf_cpumask_weight(online);
	if (nr_cpus > MAX_CPUS)
		error = -E2BIG;
	bpf_for(cpu, 0, nr_cpus) {
		struct cpu_ctx *c = cpu_of(cpu);

		if (error)
			break;
		error = scx_bpf_create_dsq(cpu + 2, -1);
		if (!c)
			continue;
		c->offline = !bpf_cpumask_test_cpu(cpu, online);
		bpf_timer_init(&c->timer, &equipoise_cpus, CLOCK_MONOTONIC);
		bpf_timer_set_callback(&c->timer, reevaluate);
	}
	scx_bpf_put_cpumask(online);
	return error;
}

SEC(".struct_ops.link")
struct sched_ext_ops equipoise_bvt = {
	.select_cpu = (void *)bvt_select_cpu,
	.enqueue = (void *)bvt_enqueue,
	.dispatch = (void *)bvt_dispatch,
	.runnable = (void *)bvt_runnable,
	.running = (void *)bvt_running,
	.stopping = (void *)bvt_stopping,
	.quiescent = (void *)bvt_quiescent,
	.init_task = (void *)bvt_init_task,
	.cgroup_init = (void *)bvt_cgroup_init,
	.cgroup_exit = (void *)bvt_cgroup_exit,
	.cgroup_move = (void *)bvt_cgroup_move,
	.cgroup_set_weight = (void *)bvt_cgroup_set_weight,
	.cpu_online = (void *)bvt_cpu_online,
	.cpu_offline = (void *)bvt_cpu_offline,
	.init = (void *)bvt_init,
	.timeout_ms = TIMEOUT_MS,
	.name = "equipoise_bvt_" BUILD,
};
