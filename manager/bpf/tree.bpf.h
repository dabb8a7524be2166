/* SPDX-License-Identifier: GPL-2.0 */
/* Virtual time in a tree of groups. equipoise_bvt.bpf.c explains what for.
 *
 * A member (a task, or a group among its siblings) that runs for d nanoseconds advances its virtual time v by d * 1024
 * / weight. A node is a group as those below it see it: its clock is the average of its members' virtual times,
 * weighted with their weights. It is kept as base + sum / load, where sum = SUM weight * (v - base) is exact in
 * integers, so that no error accumulates however long it runs. Virtual times are compared by the sign of their
 * difference: they may wrap.
 */
#ifndef EQUIPOISE_TREE_H
#define EQUIPOISE_TREE_H

#define MAX_DEPTH 16
#define US 1000LL
#define MS 1000000LL
#define UNIT_WEIGHT 1024LL /* of a task with nice 0, and of a group with cpu.weight 100, as in the kernel */
#define MAX_LAG_NS (200 * MS) /* of CPU time that a member may be owed, or may owe */
#define BEHIND_NS (20 * MS) /* of all CPUs' time */
#define RATE_SHIFT 10

/* In its parent's time. Guarded by the parent's lock. */
struct bvt_member {
	u64 v;
	u64 weight; /* as it counts in the parent's load; 0 while it does not want to run */
	u64 done; /* its part of the parent's */
};

/* A group in one tree. */
struct bvt_node {
	struct bpf_spin_lock lock;
	u32 tasks; /* that want to run, at any depth */
	u64 base;
	s64 sum;
	u64 load; /* sum of the members' weights */
	u64 done; /* sum of what its members did, in weight * virtual time */
	struct bvt_member member;
};

/* A control group. One that has tasks in several trees divides its weight among them as its load is divided. */
struct bvt_group {
	u64 parent; /* its id; 0 for the root */
	u64 weight;
	u64 load; /* of its nodes in all trees */
	u64 trees; /* how many of them it ever had nodes in; see forget() */
};

static __always_inline s64 divide(s64 a, u64 b) /* rounding down, for b > 0: version 3 of BPF has no signed division */
{
	return a < 0 ? -(s64)(((u64)-a + b - 1) / b) : (s64)((u64)a / b);
}

static __always_inline u64 clock_of(const struct bvt_node *n)
{
	return n->load ? n->base + divide(n->sum, n->load) : n->base;
}

static __always_inline void normalise(struct bvt_node *n)
{
	s64 shift = n->load ? divide(n->sum, n->load) : 0;

	n->base += shift;
	n->sum -= shift * (s64)n->load;
}

static __always_inline void advance(struct bvt_node *n, struct bvt_member *m, s64 dv)
{
	m->v += dv;
	n->sum += dv * (s64)m->weight;
}

/* What all others among a node's members did so far. */
static __always_inline u64 done_by_others(const struct bvt_node *n, const struct bvt_member *m)
{
	return n->done - m->done;
}

/* A member ran for `ran_ns`, which began when the others had done `since`. Where there are several CPUs a member that
 * ran all the time cannot be owed any, however large its weight: it then advances with the others' average, a little
 * behind. One of `tasks` that a member has answers for its part of that. On one CPU `tasks` is 0. */
static __always_inline void charge(struct bvt_node *n, struct bvt_member *m, u64 ran_ns, u64 since, u32 tasks)
{
	s64 dv = ran_ns * UNIT_WEIGHT / m->weight;
	u64 others_weight = n->load - m->weight;
	s64 bound = MAX_LAG_NS * UNIT_WEIGHT / m->weight;
	s64 ahead;

	if (tasks && others_weight) {
		s64 others = (done_by_others(n, m) - since) / (others_weight * tasks);
		s64 sum = n->sum - (s64)m->weight * (s64)(m->v - n->base);
		s64 behind = (s64)(n->base - m->v) + divide(sum, others_weight) - dv;

		if (dv < others && behind > (s64)((u64)(BEHIND_NS * UNIT_WEIGHT) / others_weight))
			dv = others;
	}
	advance(n, m, dv);
	n->done += dv * m->weight;
	m->done += dv * m->weight;
	ahead = (s64)(m->v - clock_of(n));
	if (ahead > bound)
		advance(n, m, bound - ahead);
	else if (ahead < -bound)
		advance(n, m, -bound - ahead);
	normalise(n);
}

/* Make a member count with this weight, 0: not at all. One that comes is not owed for the time it was away, but still
 * owes. One that changes its weight keeps what it owes or is owed, in CPU time. */
static __always_inline void settle(struct bvt_node *n, struct bvt_member *m, u64 weight)
{
	u64 now = clock_of(n);
	s64 ahead = (s64)(m->v - now);

	if (m->weight == weight)
		return;
	n->sum -= (s64)m->weight * (s64)(m->v - n->base);
	n->load -= m->weight;
	if (!m->weight && ahead < 0)
		m->v = now;
	else if (m->weight && weight)
		m->v = now + divide(ahead * (s64)m->weight, weight);
	m->weight = weight;
	if (!n->load) {
		n->base = m->v;
		n->sum = 0;
	} else {
		n->sum += (s64)weight * (s64)(m->v - n->base);
	}
	n->load += weight;
	normalise(n);
}

#endif
