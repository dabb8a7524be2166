/* SPDX-License-Identifier: GPL-2.0 */
/* Requests of a connection that wait in their order, for HTTP/1 and memcached's text protocol: answers come in it, too.
 *
 * It is kept for connections whose beginning was seen, or on which both sides were silent, since only then it is known
 * what waits and where messages begin; until the first MOST_YOUNG segments of requests had one each and were answered
 * before the next, or for as long as the connection lasts. Where its way is lost, what waits is not timed.
 *
 * One CPU adds requests and one takes them away; where two come at once to do the same, the way is lost.
 */
#ifndef EQUIPOISE_ORDER_H
#define EQUIPOISE_ORDER_H

/* What follow() says of a segment, one bit each. */
#define LOST_ITS_WAY 1
#define BEGUN 2 /* a message begins in it, and was counted */
#define SEVERAL 4 /* requests waited at once, now or before */
#define TAKES_TURNS 8 /* the client does, and needs no order any more */

/* Linux 5.17; without it no order is kept, and the verifier sees that nothing of it is reached. */
#define HAS_LOOP bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_loop)

struct order {
	u32 hash; /* of the connection */
	u32 http; /* else memcached */
	u64 begun_ns; /* when the first byte of the answer passed that is being sent */
	u32 first; /* that waits: counted on and on, as the next one */
	u32 next;
	u32 further; /* requests behind those, which are not timed */
	u32 further_kind;
	u32 arrived; /* the sequence number behind all that the client sent */
	u32 busy[2]; /* a CPU looks at what the client sends, or at what the guest does */
	u8 unfinished; /* the latest request was, and has a place */
	u8 pipelines;
	u16 segments; /* of requests */
	struct stream streams[2]; /* the client's, and the guest's */
	struct request places[MOST_OUTSTANDING]; /* with the kind in place of the number */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MOST_ORDERS);
	__type(key, struct connection_key);
	__type(value, struct order);
} tap_orders SEC(".maps");

/* What an order is to begin with: it is too large for the stack. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct order);
} tap_empty_order SEC(".maps");

static struct request *place_of(struct order *order, u32 number)
{
	return &order->places[number & (MOST_OUTSTANDING - 1)];
}

static bool any_outstanding(const struct order *order)
{
	return order->first != order->next || order->further;
}

static u32 next_kind(const struct order *order)
{
	if (order->first == order->next)
		return order->further_kind;
	return place_of((struct order *)order, order->first)->opaque;
}

static void begin_answer(struct scan *scan)
{
	if (!any_outstanding(scan->order))
		scan->stream->lost = true; /* nobody asked */
	scan->order->begun_ns = scan->now_ns;
}

static void begin_asking(struct scan *scan)
{
	scan->order->unfinished = false;
}

/* A request that waits. Behind those that have no place, none has one until all of them are answered. */
static void push(struct scan *scan, u32 kind)
{
	struct order *order = scan->order;

	if (!order->further && order->next - order->first < MOST_OUTSTANDING) {
		let_wait(place_of(order, order->next), kind, scan->now_ns);
		__sync_lock_test_and_set(&order->next, order->next + 1);
		order->unfinished = true;
		return;
	}
	if (order->further && (order->further_kind != kind || order->further >= MOST_FURTHER))
		scan->stream->lost = true;
	order->further_kind = kind;
	__sync_fetch_and_add(&order->further, 1);
	add(&scan->service->untimed, scan->weight);
}

/* The first one that waits is answered; its kind. */
static u32 pop(struct scan *scan)
{
	struct order *order = scan->order;
	u32 kind = next_kind(order);

	if (order->first != order->next) {
		count_answer(scan->interface, scan->port, scan->service, place_of(order, order->first), true,
			     order->begun_ns, scan->weight);
		__sync_lock_test_and_set(&order->first, order->first + 1);
	} else if (order->further) {
		__sync_fetch_and_add(&order->further, -1);
	} else {
		scan->stream->lost = true;
	}
	scan->stream->begun++;
	return kind;
}

static __noinline struct order *order_of(const struct segment *segment)
{
	struct connection_key key = segment->key;

	return bpf_map_lookup_elem(&tap_orders, &key);
}

/* Go on where the segment before ended. */
static __always_inline void look_through(struct scan *scan, const struct segment *segment, u32 begins)
{
	struct stream *stream = scan->stream;
	u32 known = stream->next - begins;

	stream->begun = 0;
	if ((s32)known < 0) {
		stream->lost = true; /* something is missing */
		return;
	}
	if (known >= segment->length)
		return; /* all of it is content */
	stream->at = segment->offset + known;
	stream->end = segment->offset + segment->length;
	if (HAS_LOOP)
		bpf_loop(MOST_STEPS, look_on, scan, 0);
	if ((s32)(stream->end - stream->at) > 0)
		stream->lost = true;
	stream->next = begins + (stream->at - segment->offset);
}

/* The rest of a request whose place is the latest one. */
static void ask_on(struct order *order, const struct segment *segment, u32 begins, u64 now_ns)
{
	struct request *latest = place_of(order, order->next - 1);
	u32 ends = begins + segment->length;

	if ((s32)(begins - order->arrived) > 0)
		order->streams[0].lost = true; /* a segment is missing, or overtaken: a request may end in it */
	if ((s32)(ends - order->arrived) > 0)
		order->arrived = ends;
	if (order->unfinished && (order->streams[0].next != begins || order->streams[0].state != FIRST) &&
	    latest->waiting)
		latest->asked_ns = now_ns;
}

/* Follow what one side sends in a segment. The verifier looks at it once. */
__attribute__((noinline)) int follow(struct __sk_buff *skb, const struct segment *segment, u64 now_ns, u64 weight,
				     u32 answers)
{
	struct scan scan = { .skb = skb, .now_ns = now_ns, .weight = weight, .answers = answers };
	u32 begins, begun, seen = 0, *busy;

	if (!segment)
		return LOST_ITS_WAY;
	begins = segment->sequence + !!(segment->flags & SYN);
	scan.order = order_of(segment);
	scan.service = service_of(segment);
	if (!scan.order || !scan.service)
		return LOST_ITS_WAY;
	if (!scan.answers && !scan.order->pipelines && scan.order->segments++ >= MOST_YOUNG &&
	    !any_outstanding(scan.order))
		return TAKES_TURNS;
	asm volatile("" : "+r"(answers));
	answers &= 1; /* the verifier must see its range where it is used */
	busy = &scan.order->busy[answers];
	scan.stream = &scan.order->streams[answers];
	if (__sync_lock_test_and_set(busy, 1))
		return LOST_ITS_WAY;
	scan.interface = segment->key.interface;
	scan.port = segment->key.guest_port;
	scan.http = scan.order->http;
	if (!scan.answers)
		ask_on(scan.order, segment, begins, now_ns);
	look_through(&scan, segment, begins);
	if (scan.order->further || scan.order->next - scan.order->first > 1)
		scan.order->pipelines = true;
	if (scan.order->pipelines)
		seen |= SEVERAL;
	begun = scan.stream->begun;
	__sync_lock_test_and_set(busy, 0);
	if (scan.order->streams[0].lost || scan.order->streams[1].lost)
		seen |= LOST_ITS_WAY;
	if (begun)
		seen |= BEGUN;
	return (int)seen;
}

/* How many requests in these places waited; they do no more. No branches, of which the verifier would follow each. */
static u32 take_all_back(struct order *order)
{
	u32 waited = 0;

#pragma clang loop unroll(disable)
	for (u32 place = 0; place < MOST_OUTSTANDING; place++)
		waited += __sync_lock_test_and_set(&order->places[place].waiting, 0) & 1;
	return waited;
}

/* The order is known no more. The client takes turns again, unless it pipelined before: then what comes is not timed
 * until both were silent. The latest request waits on, to see that there is an answer.
 */
__attribute__((noinline)) int lose_order(const struct segment *segment, u64 weight)
{
	struct connection *connection;
	struct connection_key key;
	struct service *service;
	struct order *order;
	u64 asked_ns;
	u32 waited;

	if (!segment)
		return 0;
	key = segment->key;
	connection = bpf_map_lookup_elem(&tap_connections, &key);
	service = service_of(segment);
	if (!connection || !service)
		return 0;
	connection->matched = connection->pipelines ? UNTIMED : BY_TURNS;
	order = order_of(segment);
	if (!order)
		return 0;
	order->streams[0].lost = true;
	asked_ns = place_of(order, order->next - 1)->asked_ns;
	waited = take_all_back(order);
	if (waited) {
		connection->latest = 0;
		let_wait(&connection->requests[0], 0, asked_ns);
		add(&service->untimed, (waited - 1) * weight);
	}
	bpf_map_delete_elem(&tap_orders, &key);
	return 0;
}

/* The connection has ended; how many requests waited. */
__attribute__((noinline)) int end_order(const struct segment *segment)
{
	struct connection_key key;
	struct order *order;
	u32 waited;

	if (!segment)
		return 0;
	key = segment->key;
	order = bpf_map_lookup_elem(&tap_orders, &key);
	if (!order)
		return 0;
	waited = take_all_back(order);
	bpf_map_delete_elem(&tap_orders, &key);
	return (int)waited;
}

/* From this segment of the client on it is known what waits, which is nothing, and where the guest's next message begins.
 * Whether there is room for it.
 */
__attribute__((noinline)) int begin_order(const struct segment *segment, u32 answers, u32 hash, u32 http, u32 pipelines)
{
	struct order *order, *empty;
	struct connection_key key;
	u32 only = 0;

	if (!segment || !HAS_LOOP)
		return false;
	key = segment->key;
	empty = bpf_map_lookup_elem(&tap_empty_order, &only);
	if (!empty || bpf_map_update_elem(&tap_orders, &key, empty, BPF_ANY))
		return false;
	order = bpf_map_lookup_elem(&tap_orders, &key);
	if (!order)
		return false;
	order->hash = hash;
	order->http = !!http;
	order->pipelines = !!pipelines;
	order->streams[0].next = segment->sequence + !!(segment->flags & SYN);
	order->arrived = order->streams[0].next;
	order->streams[1].next = answers;
	return true;
}

#endif
