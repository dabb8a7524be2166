/* SPDX-License-Identifier: GPL-2.0 */
/* Requests of a connection that wait in their order, for HTTP/1 and memcached's text protocol: answers come in it, too.
 *
 * It is kept for connections whose beginning was seen, or on which both sides were silent, since only then it is known
 * what waits and where messages begin; until the first MOST_YOUNG segments of requests had one each and were answered
 * before the next, or for as long as the connection lasts. Where its way is lost, what waits is not timed.
 *
 * One CPU adds requests and one takes them away; where two come at once to do the same, the way is lost.
 *
 * Orders have a fixed number of places in an array. A connection knows its own by a ticket: the number of the place, and
 * how many had it before. A place is taken from a connection that has not used it since the last time round, and only
 * while no CPU looks at what either side sends.
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
	u32 ticket; /* of the connection whose it is; 0: it is free */
	u32 busy[2]; /* a CPU looks at what the client sends, or at what the guest does */
	u8 http; /* else memcached */
	u8 used; /* since the hand came by */
	u32 place; /* its own */
	u32 earlier; /* connections that had it */
	struct connection_key key;
	u64 begun_ns; /* when the first byte of the answer passed that is being sent */
	u32 first; /* that waits: counted on and on, as the next one */
	u32 next;
	u32 further; /* requests behind those, which are not timed */
	u32 further_kind;
	u32 arrived; /* the sequence number behind all that the client sent */
	u8 unfinished; /* the latest request was, and has a place */
	u8 pipelines;
	u16 segments; /* of requests */
	struct stream streams[2]; /* the client's, and the guest's */
	struct request places[MOST_OUTSTANDING]; /* with the kind in place of the number */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MOST_ORDERS);
	__type(key, u32);
	__type(value, struct order);
} tap_orders SEC(".maps");

/* Where to look for a place. */
struct vacancies {
	u32 hand; /* goes round */
	u32 left; /* one more than the place that was left last, which is in a CPU's caches; or 0 */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct vacancies);
} tap_vacancies SEC(".maps");

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
		store(&order->next, order->next + 1);
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
		store(&order->first, order->first + 1);
	} else if (order->further) {
		__sync_fetch_and_add(&order->further, -1);
	} else {
		scan->stream->lost = true;
	}
	scan->stream->begun++;
	return kind;
}

static struct order *order_at(u32 place)
{
	place &= MOST_ORDERS - 1;
	return bpf_map_lookup_elem(&tap_orders, &place);
}

/* A connection's, if it still has one. */
static struct order *order_of(const struct connection *connection)
{
	struct order *order = order_at(connection->order);

	return order && connection->order && order->ticket == connection->order ? order : NULL;
}

/* Whether this CPU alone looks at what one side sends; leave_side() must follow. */
static bool hold_side(struct order *order, u32 side)
{
	return !__sync_lock_test_and_set(&order->busy[side], 1);
}

static void leave_side(struct order *order, u32 side)
{
	store(&order->busy[side], 0);
}

/* A place that is free, or was not used since the hand came by, both sides held. */
static struct order *hold_place(u32 place)
{
	struct order *order = order_at(place);

	if (!order)
		return NULL;
	if (order->ticket && order->used) {
		order->used = false;
		return NULL;
	}
	if (!hold_side(order, 0))
		return NULL;
	if (!hold_side(order, 1)) {
		leave_side(order, 0);
		return NULL;
	}
	order->place = place & (MOST_ORDERS - 1);
	return order;
}

static struct order *hold_any_place(void)
{
	u32 only = 0, left;
	struct vacancies *vacancies = bpf_map_lookup_elem(&tap_vacancies, &only);
	struct order *order = NULL;

	if (!vacancies)
		return NULL;
	left = vacancies->left ? __sync_lock_test_and_set(&vacancies->left, 0) : 0;
	if (left)
		order = hold_place(left - 1);
#pragma clang loop unroll(disable)
	for (u32 tried = 0; !order && tried < MOST_PLACES_TRIED; tried++)
		order = hold_place(__sync_fetch_and_add(&vacancies->hand, 1));
	return order;
}

/* Nothing is loaded of this packet. */
static bool hold_chunk(struct scan *scan)
{
	u32 only = 0;
	struct chunk *chunk = bpf_map_lookup_elem(&tap_chunks, &only);

	if (!chunk || chunk->busy)
		return false;
	store(&chunk->busy, 1);
	chunk->begins = 0;
	chunk->ends = 0;
	scan->chunk = chunk;
	return true;
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
	if (HAS_LOOP && hold_chunk(scan)) {
		bpf_loop(MOST_STEPS, look_on, scan, 0);
		store(&scan->chunk->busy, 0);
	}
	if ((s32)(stream->end - stream->at) > 0)
		stream->lost = true;
	stream->next = begins + (stream->at - segment->offset);
}

/* The rest of a request whose place is the latest one. */
static void ask_on(struct order *order, const struct segment *segment, u32 begins)
{
	struct request *latest = place_of(order, order->next - 1);
	u32 ends = begins + segment->length;

	if (order->segments < MOST_YOUNG)
		order->segments++;
	if ((s32)(begins - order->arrived) > 0)
		order->streams[0].lost = true; /* a segment is missing, or overtaken: a request may end in it */
	if ((s32)(ends - order->arrived) > 0)
		order->arrived = ends;
	if (order->unfinished && (order->streams[0].next != begins || order->streams[0].state != FIRST) &&
	    latest->waiting)
		latest->asked_ns = segment->now_ns;
}

/* Follow what one side sends in a segment. The verifier looks at it once. */
__attribute__((noinline)) int follow(struct __sk_buff *skb, const struct segment *segment,
				     const struct connection *connection, struct service *service, u32 answers)
{
	struct scan scan = { .skb = skb, .answers = !!answers };
	u32 begins, seen = 0;
	struct order *order;

	if (!segment || !connection || !service)
		return LOST_ITS_WAY;
	begins = segment->sequence + !!(segment->flags & SYN);
	order = order_of(connection);
	if (!order)
		return LOST_ITS_WAY;
	if (!answers && !order->pipelines && order->segments >= MOST_YOUNG && !any_outstanding(order))
		return TAKES_TURNS;
	asm volatile("" : "+r"(answers));
	answers &= 1; /* the verifier must see its range where it is used */
	if (!hold_side(order, answers))
		return LOST_ITS_WAY;
	if (order->ticket != connection->order) { /* another connection has it meanwhile */
		leave_side(order, answers);
		return LOST_ITS_WAY;
	}
	order->used = true;
	scan.order = order;
	scan.stream = &order->streams[answers];
	scan.service = service;
	scan.now_ns = segment->now_ns;
	scan.weight = segment->weight;
	scan.interface = segment->key.interface;
	scan.port = segment->key.guest_port;
	scan.http = order->http;
	if (!scan.answers)
		ask_on(order, segment, begins);
	look_through(&scan, segment, begins);
	if (order->further || order->next - order->first > 1)
		order->pipelines = true;
	if (order->pipelines)
		seen |= SEVERAL;
	if (scan.stream->begun)
		seen |= BEGUN;
	if (order->streams[0].lost || order->streams[1].lost)
		seen |= LOST_ITS_WAY;
	leave_side(order, answers);
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

/* Its connection needs it no more; how many requests waited. A CPU may still look at it: until that has ended, nobody else
 * gets the place.
 */
static u32 leave_order(struct order *order)
{
	u32 only = 0, ticket = order->ticket, waited = order->first != order->next ? take_all_back(order) : 0;
	struct vacancies *vacancies = bpf_map_lookup_elem(&tap_vacancies, &only);

	if (vacancies)
		vacancies->left = (ticket & (MOST_ORDERS - 1)) + 1;
	__sync_val_compare_and_swap(&order->ticket, ticket, 0);
	return waited;
}

/* The order is known no more. The client takes turns again, unless it pipelined before: then what comes is not timed
 * until both were silent. The latest request waits on, to see that there is an answer.
 */
__attribute__((noinline)) int lose_order(const struct segment *segment, struct connection *connection,
					 struct service *service)
{
	struct order *order;
	u64 asked_ns;
	u32 waited;

	if (!segment || !connection || !service)
		return 0;
	connection->matched = connection->pipelines ? UNTIMED : BY_TURNS;
	order = order_of(connection);
	if (!order)
		return 0;
	order->streams[0].lost = true;
	asked_ns = place_of(order, order->next - 1)->asked_ns;
	waited = leave_order(order);
	if (waited) {
		connection->latest = 0;
		let_wait(&connection->requests[0], 0, asked_ns);
		add(&service->untimed, (waited - 1) * segment->weight);
	}
	return 0;
}

/* The connection has ended; how many requests waited. */
__attribute__((noinline)) int end_order(const struct connection *connection)
{
	struct order *order = connection ? order_of(connection) : NULL;

	return order ? (int)leave_order(order) : 0;
}

/* Whoever had the place before goes on without. */
static void clear_order(struct order *order, u64 weight)
{
	struct service_key key = { .interface = order->key.interface, .port = order->key.guest_port };
	struct service *service;

	store(&order->ticket, 0);
	if (order->first != order->next) {
		service = bpf_map_lookup_elem(&tap_services, &key);
		if (service)
			add(&service->untimed, take_all_back(order) * weight);
	}
	order->begun_ns = 0;
	order->first = 0;
	order->next = 0;
	order->further = 0;
	order->unfinished = false;
	order->segments = 0;
	__builtin_memset(order->streams, 0, sizeof(order->streams));
}

static u32 give_ticket(struct order *order)
{
	u32 ticket = ++order->earlier * MOST_ORDERS + order->place;

	ticket = ticket ? ticket : MOST_ORDERS;
	store(&order->ticket, ticket);
	return ticket;
}

/* From this segment of the client on it is known what waits, which is nothing, and where the guest's next message begins.
 * Whether there is room for it.
 */
__attribute__((noinline)) int begin_order(const struct segment *segment, struct connection *connection, u32 answers,
					  u32 http)
{
	struct order *order;

	if (!segment || !connection || !HAS_LOOP)
		return false;
	order = hold_any_place();
	if (!order)
		return false;
	clear_order(order, segment->weight);
	order->key = segment->key;
	order->http = !!http;
	order->used = true;
	order->pipelines = connection->pipelines;
	order->streams[0].next = segment->sequence + !!(segment->flags & SYN);
	order->arrived = order->streams[0].next;
	order->streams[1].next = answers;
	connection->order = give_ticket(order);
	leave_side(order, 1);
	leave_side(order, 0);
	return true;
}

#endif
