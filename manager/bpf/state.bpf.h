/* SPDX-License-Identifier: GPL-2.0 */
/* What the scheduler knows, and the accounts of those that run. equipoise_bvt.bpf.c explains them. */
#ifndef EQUIPOISE_STATE_H
#define EQUIPOISE_STATE_H

#include "kernel.bpf.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "interface.bpf.h"
#include "tree.bpf.h"

#define MAX_CPUS 1024
#define MAX_GROUPS 65536
#define SHARED 0 /* the tree, and the queue, of tasks that may choose their CPU; CPU c's own is c + 1 */
/* Tunables: set before the program is loaded, constants to the verifier after that. */
const volatile u64 allowance_ns = 700 * US; /* C: the least time between two switches for fairness' sake */
const volatile u64 grace_ns = 100 * US; /* the least time until a decision is taken again */
const volatile u64 slice_ns = 5 * MS; /* after which a decision is taken in any case */
const volatile u64 patience_ns = 8500 * US; /* on borrowed time, after which a task has half its warp */
const volatile u64 max_borrowed_ns = 50 * MS; /* after which it has none */
const volatile u64 max_wait_ns = 1000 * MS; /* in a queue: half of what the kernel's watchdog allows */
const volatile u64 search_ns = 100 * MS; /* how often a CPU looks for those who waited that long */
const volatile u64 rescue_ns = 500 * US; /* what they get */
const volatile u64 weigh_ns = 100 * MS; /* how often the weights of a task's groups are looked at */
const volatile u64 kthread_warp_ns = 4 * MS;

#define TIMEOUT_MS 2000
#define IDLE_WEIGHT 3

struct task_ctx {
	struct bvt_member member;
	u64 cgid;
	u64 used_ns; /* sum_exec_runtime that was charged */
	u64 queued_ns;
	u64 weighed_ns;
	u64 key; /* effective virtual time */
	u64 rate; /* of the key, per nanosecond that it runs, << RATE_SHIFT */
	s64 base_warp; /* of a kernel thread of one CPU */
	s64 warp;
	u64 limit_ns;
	u64 borrowed_ns;
	u64 debt; /* virtual time that it takes along when it changes its group or tree */
	s32 tree; /* -1: none yet */
	s32 cpu; /* where it ran last */
	u64 since[MAX_DEPTH]; /* what others had done when it was charged last, from its own group upwards */
};

struct cpu_ctx {
	struct bpf_timer timer;
	u64 key; /* of the running task when it started, in the shared tree's time */
	u64 rate;
	u64 started_ns;
	s64 warp;
	s64 offset; /* its own tree's time - the shared tree's */
	u64 searched_ns;
	u64 wakes_ns; /* when its timer fires, if that is yet to come */
	u32 busy; /* runs a task of ours */
	u32 offline;
};

struct node_key {
	u64 cgid;
	u64 tree;
};

#define PINNED(map_name, map_type, entries, key_type, value_type, map_flags_)                                          \
	struct {                                                                                                       \
		__uint(type, map_type);                                                                                \
		__uint(max_entries, entries);                                                                          \
		__uint(map_flags, map_flags_);                                                                         \
		__uint(pinning, LIBBPF_PIN_BY_NAME);                                                                   \
		__type(key, key_type);                                                                                 \
		__type(value, value_type);                                                                             \
	} map_name SEC(".maps")

PINNED(equipoise_warps, BPF_MAP_TYPE_HASH, MAX_GROUPS, u64, struct warp, BPF_F_NO_PREALLOC);
PINNED(equipoise_stats, BPF_MAP_TYPE_PERCPU_ARRAY, 1, u32, struct stats, 0);
PINNED(equipoise_cpus, BPF_MAP_TYPE_ARRAY, MAX_CPUS, u32, struct cpu_ctx, 0); /* else its timers end with the loader */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_GROUPS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u64);
	__type(value, struct bvt_group);
} groups SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16 * MAX_GROUPS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct node_key);
	__type(value, struct bvt_node);
} nodes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_ctx);
} tasks SEC(".maps");

static const struct bvt_node new_node;
static u32 nr_cpus = 1;
static s32 nr_online;
static u64 root_cgid;

/* The kernel's sched_prio_to_weight: nice -20 .. 19. */
static const u32 nice_weight[40] = {
	88761, 71755, 56483, 46273, 36291, 29154, 23254, 18705, 14949, 11916, 9548, 7620, 6100, 4904,
	3906,  3121,  2501,  1991,  1586,  1277,  1024,	 820,	655,   526,   423,  335,  272,	215,
	172,   137,   110,   87,    70,	   56,	  45,	 36,	29,    23,    18,   15,
};

static __always_inline struct stats *stats_of_cpu(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&equipoise_stats, &zero);
}

#define COUNT(field, amount)                                                                                           \
	do {                                                                                                           \
		struct stats *stats_ = stats_of_cpu();                                                                 \
		if (stats_)                                                                                            \
			stats_->field += (amount);                                                                     \
	} while (0)

static __always_inline struct cpu_ctx *cpu_of(s32 cpu)
{
	u32 index = cpu;

	return bpf_map_lookup_elem(&equipoise_cpus, &index);
}

static __always_inline struct task_ctx *ctx_of(struct task_struct *p)
{
	return bpf_task_storage_get(&tasks, p, 0, 0);
}

static __always_inline u64 weight_of(const struct task_struct *p)
{
	u32 index = p->static_prio - 100;

	if (p->policy == SCHED_IDLE)
		return IDLE_WEIGHT;
	return index < 40 ? nice_weight[index] : UNIT_WEIGHT;
}

/* In the units of UNIT_WEIGHT; 0 where there is none. */
static __always_inline u64 shares_of(struct task_group *tg)
{
	return tg ? BPF_CORE_READ(tg, shares) >> 10 : 0;
}

/* Look up what a task's groups weigh: the kernel tells of cpu.weight, but before 6.19 not of cpu.idle. */
static __noinline void weigh(struct task_struct *p)
{
	struct task_group *tg = p->sched_task_group;
	int level;

	bpf_for(level, 0, MAX_DEPTH) {
		u64 cgid = BPF_CORE_READ(tg, css.cgroup, kn, id), shares = shares_of(tg);
		struct bvt_group *g = bpf_map_lookup_elem(&groups, &cgid);

		if (g && shares)
			g->weight = shares;
		tg = BPF_CORE_READ(tg, parent);
		if (!tg)
			break;
	}
}

/* Not static: the verifier looks at it once, not at every path of every call. So is update(). */
__noinline s64 scale(s64 value, u64 by, u64 per)
{
	const s64 most = 1LL << 40;

	value = value > most ? most : value < -most ? -most : value;
	return divide(value * (s64)by, per ?: 1);
}

static struct bvt_node *node_of(u64 cgid, u64 tree)
{
	struct node_key key = { .cgid = cgid, .tree = tree };
	struct bvt_node *n = bpf_map_lookup_elem(&nodes, &key);

	if (n)
		return n;
	bpf_map_update_elem(&nodes, &key, &new_node, BPF_NOEXIST);
	return bpf_map_lookup_elem(&nodes, &key);
}

/* Charge a task and all groups above it for CPU time; let it count with this weight (0: it does not want to run); find
 * its key. `came` is 1 when it comes, -1 when it leaves. */
__noinline int update(struct task_ctx *tc, u64 ran_ns, u64 weight, s32 came)
{
	s64 ahead = 0, warp;
	u64 rate, below = 1, below_load = 0, cgid, child = 0, tree;
	bool parallel;
	struct bvt_member *m;
	int level;

	if (!tc)
		return 0;
	m = &tc->member;
	cgid = tc->cgid;
	tree = tc->tree;
	parallel = tree == SHARED && nr_online > 1;
	warp = tc->base_warp;
	rate = 1 << RATE_SHIFT;
	tc->limit_ns = max_borrowed_ns;
	bpf_for(level, 0, MAX_DEPTH) {
		struct bvt_node *n = node_of(cgid, tree);
		struct bvt_group *g = bpf_map_lookup_elem(&groups, &cgid);
		u64 before, load, counts, others, now, all;
		s64 lag;

		if (!n || !g)
			return -1;
		bpf_spin_lock(&n->lock);
		before = n->load;
		if (ran_ns && m->weight)
			charge(n, m, ran_ns, tc->since[level], parallel ? below : 0);
		settle(n, m, weight);
		n->tasks += came;
		below = n->tasks;
		load = n->load;
		counts = m->weight;
		others = done_by_others(n, m);
		now = clock_of(n);
		lag = m->v - now;
		bpf_spin_unlock(&n->lock);
		tc->since[level] = others;
		all = __sync_fetch_and_add(&g->load, load - before) + (load - before);

		if (!level) {
			rate = (UNIT_WEIGHT << RATE_SHIFT) / (counts ?: 1);
			ahead = lag;
			if (!counts)
				tc->debt = lag;
		} else {
			struct warp *w = bpf_map_lookup_elem(&equipoise_warps, &child);

			rate = scale(rate, below_load, counts);
			ahead = scale(ahead, below_load, counts) + lag;
			warp = scale(warp, below_load, counts);
			if (w) {
				warp += w->warp_ns > MAX_WARP_NS ? MAX_WARP_NS : w->warp_ns;
				if (w->limit_ns && w->limit_ns < tc->limit_ns)
					tc->limit_ns = w->limit_ns;
			}
		}
		if (!g->parent) {
			tc->rate = rate;
			if (ahead <= 0) {
				tc->borrowed_ns = 0;
			} else if (warp) {
				tc->borrowed_ns += ran_ns;
				COUNT(borrowed_ns, ran_ns);
				if (tc->borrowed_ns > patience_ns)
					warp >>= 1;
				if (tc->borrowed_ns > tc->limit_ns) {
					warp = 0;
					if (tc->borrowed_ns - ran_ns <= tc->limit_ns)
						COUNT(limited, 1);
				}
			}
			tc->warp = warp;
			tc->key = now + ahead - warp;
			return 0;
		}
		weight = load ? g->weight * load / (all ?: 1) ?: 1 : 0;
		m = &n->member;
		below_load = load;
		child = cgid;
		cgid = g->parent;
	}
	return -1;
}

static __always_inline void charge_task(struct task_struct *p, struct task_ctx *tc)
{
	u64 used_ns = p->se.sum_exec_runtime;

	update(tc, used_ns - tc->used_ns, weight_of(p), 0);
	tc->used_ns = used_ns;
}

#endif
