/* SPDX-License-Identifier: GPL-2.0 */
/* Where messages begin and end in what one side of a connection sends: HTTP/1, and memcached's text protocol.
 *
 * A segment is looked through from where the one before left off, in steps of a byte or of up to eight, and of up to 128
 * where only ends of lines are looked for, and in a head, lines that matter; content is passed over in one step, by its
 * length. So a message may be cut anywhere. Whatever is not as it should be has it lose its way. What several steps look
 * at is loaded at once.
 */
#ifndef EQUIPOISE_MESSAGES_H
#define EQUIPOISE_MESSAGES_H

#define MOST_NUMBER (1u << 30)
#define NO_NUMBER 0xffffffffu
#define STEP_BYTES 8
#define WORDS_PASSED 16 /* of that length, at most, where only ends of lines are looked for */
#define WORDS_BEHIND 4 /* of a line that begins in those, enough is known to tell whether it matters */
#define LOADED_BYTES 384 /* at once */
#define NEEDED_BYTES 64 /* if there are as many */
#define LAST_OFFSET (LOADED_BYTES - NEEDED_BYTES)
#define CHUNK_WORDS                                                                                                    \
	((LAST_OFFSET + LOADED_BYTES) / STEP_BYTES + WORDS_BEHIND) /* for the verifier: a step looks at fewer */
#define TOLD_BYTES (2 * STEP_BYTES) /* that is enough */
#define MOST_WORD 20 /* an answer to incr has as many digits */
#define METHOD_LETTERS 4 /* that are looked at */
#define STATUS_LETTERS 12 /* "HTTP/1.1 200" */

/* Where in a message. */
#define FIRST 0 /* in its first word, or before it */
#define REST 1 /* of a line, of which nothing is wanted */
#define WORDS 2 /* memcached: of a line that has a length or noreply in it */
#define LINE 3 /* HTTP, as all that follow: a line of the head begins */
#define NAME 4
#define LENGTH 5
#define CODING 6
#define CHUNK 7 /* the line with its length */
#define CHUNK_REST 8
#define TRAILER 9
#define TRAILER_REST 10

/* What a request is answered with. */
#define KIND 0x07
#define SOME_LINE 0
#define VALUES 1
#define STATISTICS 2
#define META 3
#define PAGE 4
#define HEAD_ALONE 5
#define TUNNEL 6

/* Of the message, beside its kind. Of requests of memcached: */
#define STORES 0x08
#define MAY_BE_QUIET 0x10
#define QUIET 0x20
#define QUITS 0x80
/* Of answers of memcached: */
#define SIZES 0x08 /* its line has a length */
#define LAST 0x10 /* the answer ends with it */
#define ANSWERING 0x20 /* it began with a line before */
/* Of both, and of HTTP: */
#define SIZED 0x40
/* Of HTTP: */
#define CHUNKED 0x08
#define EMPTY 0x10 /* whatever the head says */

/* Of one direction of a connection. It lies in a map, of whose values the verifier expects anything: it need not follow
 * them from step to step.
 */
struct stream {
	u64 word; /* its last letters */
	u32 next; /* the sequence number of what is looked at next; what is before it is content */
	u32 at; /* in the packet */
	u32 end;
	u32 number; /* as read so far */
	u32 size; /* of the content */
	u32 begun; /* messages, in this segment */
	u8 state;
	u8 letters; /* of the word */
	u8 words; /* of the line that have ended */
	u8 traits;
	u32 lost; /* its way */
};

/* What was loaded of a packet; behind it are zeros. */
struct chunk {
	u32 busy; /* this CPU looks at it already, in what it does below an interrupt or, in real time, another task */
	u32 begins; /* in the packet */
	u32 ends;
	u32 passable; /* bytes from where a step begins; not on the stack, so that the verifier need not follow it */
	u64 words[CHUNK_WORDS];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct chunk);
} tap_chunks SEC(".maps");

struct order;

struct scan {
	struct __sk_buff *skb;
	struct chunk *chunk;
	struct order *order;
	struct stream *stream;
	struct service *service;
	u64 now_ns;
	u32 weight;
	u32 interface;
	u16 port;
	u8 answers; /* they are, else requests */
	u8 http;
};

/* What order.bpf.h does with them. */
static bool any_outstanding(const struct order *order);
static u32 next_kind(const struct order *order);
static void begin_answer(struct scan *scan);
static void begin_asking(struct scan *scan);
static void push(struct scan *scan, u32 kind);
static u32 pop(struct scan *scan);

#define EIGHT(a, b, c, d, e, f, g, h) ((u64)FOUR(a, b, c, d) << 32 | FOUR(e, f, g, h))

/* A bit for each byte that is a newline, or follows one that is: the lowest one is right. */
static u64 newlines(u64 bytes)
{
	u64 differ = bytes ^ 0x0a0a0a0a0a0a0a0aULL;

	return (differ - 0x0101010101010101ULL) & ~differ & 0x8080808080808080ULL;
}

/* How many bytes there are through the lowest one. */
static u32 through(u64 bits)
{
	u64 below = (bits & -bits) - 1;

	return (u32)((below & 0x0101010101010101ULL) * 0x0101010101010101ULL >> 56);
}

static void begin_word(struct scan *scan)
{
	struct stream *stream = scan->stream;

	stream->word = 0;
	stream->letters = 0;
	stream->number = 0;
}

static void begin_message(struct scan *scan, u32 traits)
{
	struct stream *stream = scan->stream;

	begin_word(scan);
	stream->state = FIRST;
	stream->traits = traits;
	stream->words = 0;
}

static void take_letter(struct scan *scan, u8 letter)
{
	struct stream *stream = scan->stream;

	stream->word = stream->word << 8 | letter;
	stream->letters = stream->letters < 255 ? stream->letters + 1 : 255;
}

static void take_digit(struct scan *scan, u32 digit, u32 base)
{
	struct stream *stream = scan->stream;

	if (digit >= base || stream->number > MOST_NUMBER / base)
		stream->number = NO_NUMBER;
	else
		stream->number = stream->number * base + digit;
}

/* The head of a message of HTTP has ended. */
static void end_head(struct scan *scan)
{
	struct stream *stream = scan->stream;
	u32 traits = stream->traits;

	if (traits & CHUNKED && !(traits & EMPTY)) {
		begin_word(scan);
		stream->state = CHUNK;
		return;
	}
	if (scan->answers && !(traits & (SIZED | EMPTY)))
		stream->lost = true; /* it ends with the connection */
	if ((traits & (SIZED | EMPTY)) == SIZED)
		stream->at += stream->size;
	begin_message(scan, 0);
}

static __always_inline u32 take_method(struct scan *scan, u8 letter, u64 eight)
{
	struct stream *stream = scan->stream;
	u32 method, taken = 1;

	if (!stream->letters && (letter == '\r' || letter == '\n'))
		return 1; /* RFC 9112, 2.2: ignored */
	if (!stream->letters)
		begin_asking(scan);
	if (!stream->letters && eight) {
		stream->word = eight >> 32;
		stream->letters = taken = METHOD_LETTERS;
	} else {
		take_letter(scan, letter);
	}
	if (stream->letters < METHOD_LETTERS)
		return taken;
	method = (u32)stream->word;
	switch (method) {
	case METHODS:
		break;
	default:
		stream->lost = true;
		return taken;
	}
	stream->state = REST;
	stream->begun++;
	add(&scan->service->http, scan->weight);
	push(scan, method == FOUR('H', 'E', 'A', 'D')	? HEAD_ALONE
		   : method == FOUR('C', 'O', 'N', 'N') ? TUNNEL
							: PAGE);
	return taken;
}

/* RFC 9112, 4: HTTP/1.1 200 */
static __always_inline void judge_status(struct scan *scan)
{
	struct stream *stream = scan->stream;
	u32 status = (u32)stream->word, kind;
	u32 hundreds = (status >> 16 & 0xff) - '0', tens = (status >> 8 & 0xff) - '0', ones = (status & 0xff) - '0';

	stream->state = REST;
	stream->traits = 0;
	if (status >> 24 != ' ' || hundreds - 1 > 8 || tens > 9 || ones > 9) {
		stream->lost = true;
		return;
	}
	if (hundreds == 1 && (tens || ones != 1)) {
		stream->traits = EMPTY; /* 100 Continue, 103 Early Hints: another one follows */
		return;
	}
	kind = pop(scan);
	if (hundreds >= 5 && !stream->lost)
		add(&scan->service->errors, scan->weight);
	if (kind == HEAD_ALONE || (hundreds == 2 && !tens && ones == 4) || (hundreds == 3 && !tens && ones == 4))
		stream->traits = EMPTY;
	if (hundreds == 1 || (kind == TUNNEL && hundreds == 2))
		stream->lost = true; /* another protocol follows */
}

static __always_inline u32 take_status(struct scan *scan, const u64 *words, u32 left)
{
	struct stream *stream = scan->stream;
	u32 taken = 1;

	if (!stream->letters)
		begin_answer(scan);
	if (!stream->letters && left >= STATUS_LETTERS) {
		if ((u32)words[0] != bpf_htonl(FOUR('H', 'T', 'T', 'P')))
			stream->lost = true;
		stream->word = bpf_be64_to_cpu(words[0] >> 32 | words[1] << 32);
		stream->letters = taken = STATUS_LETTERS;
	} else {
		take_letter(scan, (u8)words[0]);
		if (stream->letters == 4 && (u32)stream->word != FOUR('H', 'T', 'T', 'P'))
			stream->lost = true;
	}
	if (stream->letters == STATUS_LETTERS && !stream->lost)
		judge_status(scan);
	return taken;
}

#define LOWER 0x2020202020202020ULL

#define CONTENT EIGHT('c', 'o', 'n', 't', 'e', 'n', 't', '-')
#define LENGTH_OF_IT EIGHT(0, 'l', 'e', 'n', 'g', 't', 'h', ':')
#define TRANSFER EIGHT('t', 'r', 'a', 'n', 's', 'f', 'e', 'r')

/* A line of a head begins, with these letters, as far as there are so many. Of a name only the first eight are looked at,
 * unless it may be one that matters.
 */
static __always_inline u32 begin_line(struct scan *scan, u64 eight, u64 further, u32 left)
{
	struct stream *stream = scan->stream;
	u8 letter = (u8)(eight >> 56);

	begin_word(scan);
	if (eight >> 48 == ('\r' << 8 | '\n')) {
		end_head(scan);
		return 2;
	}
	if (letter == '\n') {
		end_head(scan);
		return 1;
	}
	if (letter == '\r')
		return 1;
	stream->state = NAME;
	if (left < STEP_BYTES) {
		take_letter(scan, letter | 0x20);
		return 1;
	}
	stream->word = eight | LOWER;
	stream->letters = STEP_BYTES;
	if (stream->word == CONTENT && left >= TOLD_BYTES && (further | LOWER) >> 8 == LENGTH_OF_IT) {
		begin_word(scan);
		stream->state = LENGTH;
		return 2 * STEP_BYTES - 1;
	}
	if (stream->word == CONTENT || stream->word == TRANSFER)
		return STEP_BYTES;
	stream->state = REST;
	return 0;
}

/* The rest of a name that may be one that matters, of which eight letters are known: in one step, if there are as many more.
 * 0: it is another one, or is to be taken letter by letter.
 */
static u32 take_rest_of_name(struct scan *scan, u64 eight)
{
	struct stream *stream = scan->stream;
	u64 lower = eight | LOWER;

	if (stream->word == CONTENT && lower >> 8 == LENGTH_OF_IT) {
		begin_word(scan);
		stream->state = LENGTH;
		return STEP_BYTES - 1;
	}
	if (stream->word == TRANSFER && lower == EIGHT('-', 'e', 'n', 'c', 'o', 'd', 'i', 'n')) {
		stream->word = lower;
		stream->letters = 2 * STEP_BYTES;
		return STEP_BYTES;
	}
	stream->state = REST;
	return 0;
}

static u32 take_name(struct scan *scan, u8 letter, u64 eight)
{
	struct stream *stream = scan->stream;

	if (eight && stream->letters == STEP_BYTES)
		return take_rest_of_name(scan, eight);
	if (letter == '\n') {
		stream->state = LINE;
		return 1;
	}
	if (letter != ':') {
		take_letter(scan, letter | 0x20);
		if (stream->letters == STEP_BYTES && stream->word != CONTENT && stream->word != TRANSFER)
			stream->state = REST;
		return 1;
	}
	stream->state = REST;
	if (stream->letters == 14 && stream->word == EIGHT('t', '-', 'l', 'e', 'n', 'g', 't', 'h'))
		stream->state = LENGTH;
	else if (stream->letters == 17 && stream->word == EIGHT('e', 'n', 'c', 'o', 'd', 'i', 'n', 'g'))
		stream->state = CODING;
	begin_word(scan);
	return 1;
}

static void take_length(struct scan *scan, u8 letter)
{
	struct stream *stream = scan->stream;

	if (letter == ' ' || letter == '\t' || letter == '\r')
		return;
	if (letter != '\n') {
		take_letter(scan, letter);
		take_digit(scan, letter - '0', 10);
		return;
	}
	if (!stream->letters || stream->number >= MOST_NUMBER || stream->traits & SIZED)
		stream->lost = true;
	stream->size = stream->number;
	stream->traits |= SIZED;
	stream->state = LINE;
}

/* As many of its letters as there are. */
static u32 take_length_on(struct scan *scan, u8 letter, u64 eight)
{
	u32 taken = 0;

	if (!eight) {
		take_length(scan, letter);
		return 1;
	}
#pragma clang loop unroll(disable)
	while (taken < STEP_BYTES && scan->stream->state == LENGTH) {
		take_length(scan, (u8)(eight >> 56));
		eight <<= 8;
		taken++;
	}
	return taken;
}

static void take_coding(struct scan *scan, u8 letter)
{
	struct stream *stream = scan->stream;

	if (letter == ' ' || letter == '\t' || letter == '\r')
		return;
	if (letter != '\n') {
		take_letter(scan, letter | 0x20);
		return;
	}
	if ((stream->word & 0x00ffffffffffffffULL) != EIGHT(0, 'c', 'h', 'u', 'n', 'k', 'e', 'd'))
		stream->lost = true;
	stream->traits |= CHUNKED;
	stream->state = LINE;
}

/* The line of a chunk's length has ended. */
static void end_chunk_line(struct scan *scan)
{
	struct stream *stream = scan->stream;

	if (!stream->letters || stream->number >= MOST_NUMBER)
		stream->lost = true;
	stream->state = stream->number ? CHUNK : TRAILER;
	if (stream->number)
		stream->at += stream->number + 2; /* the chunk, and the end of its line */
	begin_word(scan);
}

static void take_chunk(struct scan *scan, u8 letter)
{
	struct stream *stream = scan->stream;
	u8 lower = letter | 0x20;

	if (letter == '\n') {
		end_chunk_line(scan);
	} else if (letter == ';') {
		stream->state = CHUNK_REST;
	} else if (letter != '\r' && letter != ' ') {
		take_letter(scan, letter);
		take_digit(scan, lower >= 'a' ? lower - 'a' + 10 : (u32)letter - '0', 16);
	}
}

static __always_inline u32 take_http(struct scan *scan, const u64 *words, u64 eight, u32 left)
{
	struct stream *stream = scan->stream;
	u8 letter = (u8)words[0];

	switch (stream->state) {
	case FIRST:
		return scan->answers ? take_status(scan, words, left) : take_method(scan, letter, eight);
	case LINE:
		return begin_line(scan, bpf_be64_to_cpu(words[0]), bpf_be64_to_cpu(words[1]), left);
	case NAME:
		return take_name(scan, letter, eight);
	case LENGTH:
		return take_length_on(scan, letter, eight);
	case CODING:
		take_coding(scan, letter);
		break;
	case CHUNK:
		take_chunk(scan, letter);
		break;
	case TRAILER:
		if (letter == '\n')
			begin_message(scan, 0);
		else if (letter != '\r')
			stream->state = TRAILER_REST;
		break;
	default:
		stream->lost = true;
	}
	return 1;
}

/* A command of memcached: its first word has ended. */
static void begin_command(struct scan *scan)
{
	struct stream *stream = scan->stream;

	stream->state = WORDS;
	switch (stream->word) {
	case EIGHT(0, 0, 0, 0, 0, 'g', 'e', 't'):
	case EIGHT(0, 0, 0, 0, 'g', 'e', 't', 's'):
	case EIGHT(0, 0, 0, 0, 0, 'g', 'a', 't'):
	case EIGHT(0, 0, 0, 0, 'g', 'a', 't', 's'):
		stream->traits = VALUES;
		stream->state = REST;
		break;
	case EIGHT(0, 0, 0, 0, 0, 's', 'e', 't'):
	case EIGHT(0, 0, 0, 0, 0, 'a', 'd', 'd'):
	case EIGHT(0, 0, 0, 0, 0, 'c', 'a', 's'):
	case EIGHT(0, 'r', 'e', 'p', 'l', 'a', 'c', 'e'):
	case EIGHT(0, 0, 'a', 'p', 'p', 'e', 'n', 'd'):
	case EIGHT(0, 'p', 'r', 'e', 'p', 'e', 'n', 'd'):
		stream->traits = SOME_LINE | STORES | MAY_BE_QUIET;
		break;
	case EIGHT(0, 0, 0, 0, 'i', 'n', 'c', 'r'):
	case EIGHT(0, 0, 0, 0, 'd', 'e', 'c', 'r'):
	case EIGHT(0, 0, 'd', 'e', 'l', 'e', 't', 'e'):
	case EIGHT(0, 0, 0, 't', 'o', 'u', 'c', 'h'):
	case EIGHT('l', 'u', 's', 'h', '_', 'a', 'l', 'l'):
	case EIGHT('e', 'r', 'b', 'o', 's', 'i', 't', 'y'):
		stream->traits = SOME_LINE | MAY_BE_QUIET;
		break;
	case EIGHT(0, 'v', 'e', 'r', 's', 'i', 'o', 'n'):
		stream->traits = SOME_LINE;
		stream->state = REST;
		break;
	case EIGHT(0, 0, 0, 's', 't', 'a', 't', 's'):
		stream->traits = STATISTICS;
		stream->state = REST;
		break;
	case EIGHT(0, 0, 0, 0, 0, 0, 'm', 's'):
		stream->traits = META | STORES;
		break;
	case EIGHT(0, 0, 0, 0, 0, 0, 'm', 'g'):
	case EIGHT(0, 0, 0, 0, 0, 0, 'm', 'd'):
	case EIGHT(0, 0, 0, 0, 0, 0, 'm', 'a'):
	case EIGHT(0, 0, 0, 0, 0, 0, 'm', 'n'):
		stream->traits = META;
		break;
	case EIGHT(0, 0, 0, 0, 'q', 'u', 'i', 't'):
		stream->traits = QUITS;
		break;
	default:
		stream->lost = true;
	}
}

/* An answer of memcached, or a further line of one: its first word has ended. Where it does not fit the request, or says that
 * the server took the request for something else, it tells nothing of what follows.
 */
static __always_inline void begin_reply(struct scan *scan)
{
	struct stream *stream = scan->stream;
	u32 kind = stream->traits & ANSWERING ? stream->traits & KIND : next_kind(scan->order), traits = LAST;
	bool fits, fails = false;

	stream->state = REST;
	switch (stream->word) {
	case EIGHT(0, 0, 0, 'V', 'A', 'L', 'U', 'E'):
		fits = kind == VALUES;
		traits = SIZES;
		stream->state = WORDS;
		break;
	case EIGHT(0, 0, 0, 0, 0, 'E', 'N', 'D'):
		fits = kind == VALUES || kind == STATISTICS;
		break;
	case EIGHT(0, 0, 0, 0, 'S', 'T', 'A', 'T'):
		fits = kind == STATISTICS;
		traits = 0;
		break;
	case EIGHT(0, 0, 0, 'R', 'E', 'S', 'E', 'T'):
	case EIGHT(0, 0, 0, 0, 0, 0, 'O', 'K'):
		fits = kind == STATISTICS || kind == SOME_LINE;
		break;
	case EIGHT(0, 0, 0, 0, 0, 0, 'V', 'A'):
		fits = kind == META;
		traits = SIZES | LAST;
		stream->state = WORDS;
		break;
	case EIGHT(0, 0, 0, 0, 0, 0, 'H', 'D'):
	case EIGHT(0, 0, 0, 0, 0, 0, 'E', 'N'):
	case EIGHT(0, 0, 0, 0, 0, 0, 'N', 'F'):
	case EIGHT(0, 0, 0, 0, 0, 0, 'N', 'S'):
	case EIGHT(0, 0, 0, 0, 0, 0, 'E', 'X'):
	case EIGHT(0, 0, 0, 0, 0, 0, 'M', 'N'):
		fits = kind == META;
		break;
	case EIGHT('E', 'R', '_', 'E', 'R', 'R', 'O', 'R'): /* SERVER_ERROR */
		fits = fails = !(stream->traits & ANSWERING);
		break;
	case EIGHT('N', 'T', '_', 'E', 'R', 'R', 'O', 'R'): /* CLIENT_ERROR */
	case EIGHT(0, 0, 0, 'E', 'R', 'R', 'O', 'R'):
		fits = false;
		break;
	default:
		fits = kind == SOME_LINE && stream->letters;
	}
	if (!fits) {
		stream->lost = true;
		return;
	}
	if (!(stream->traits & ANSWERING))
		pop(scan);
	if (fails && !stream->lost)
		add(&scan->service->errors, scan->weight);
	stream->traits = kind | traits | ANSWERING;
}

/* Which word of a line is the length of the content; the one before it is said to be the last one that has ended. */
static u32 length_at(const struct scan *scan)
{
	struct stream *stream = scan->stream;

	if (scan->answers)
		return (stream->traits & KIND) == META ? 1 : 3;
	return (stream->traits & KIND) == META ? 2 : 4;
}

static void end_word(struct scan *scan)
{
	struct stream *stream = scan->stream;
	u32 quiet = stream->letters == 7 && stream->word == EIGHT(0, 'n', 'o', 'r', 'e', 'p', 'l', 'y') ? QUIET : 0;

	if (stream->traits & SIZES && stream->words == length_at(scan)) { /* SIZES and STORES are one bit */
		if (stream->number >= MOST_NUMBER)
			stream->lost = true;
		stream->size = stream->number;
		stream->traits |= SIZED;
	} else if (!scan->answers && (stream->traits & KIND) == META && stream->words > 1 && stream->letters == 1 &&
		   (u8)stream->word == 'q') {
		stream->lost = true; /* it is answered, or not */
	}
	if (!scan->answers)
		stream->traits = (stream->traits & ~QUIET) | quiet;
	stream->words = stream->words < 255 ? stream->words + 1 : 255;
	begin_word(scan);
}

static __always_inline void end_text_line(struct scan *scan)
{
	struct stream *stream = scan->stream;
	u32 traits = stream->traits;

	if (traits & SIZES) {
		if (!(traits & SIZED))
			stream->lost = true;
		stream->at += stream->size + 2; /* the content, and the end of its line */
	}
	if (scan->answers) {
		begin_message(scan, traits & LAST ? 0 : (traits & KIND) | ANSWERING);
		return;
	}
	begin_message(scan, 0);
	if (traits & QUITS || stream->lost)
		return;
	stream->begun++;
	add(&scan->service->memcached, scan->weight);
	if ((traits & (MAY_BE_QUIET | QUIET)) == (MAY_BE_QUIET | QUIET))
		add(&scan->service->noreply, scan->weight);
	else
		push(scan, traits & KIND);
}

/* Whether eight letters of a key, and no other word's, can be taken in one step. */
static bool is_in_key(const struct scan *scan, u64 eight)
{
	struct stream *stream = scan->stream;

	if (!eight || stream->state != WORDS || stream->words != 1 || (stream->traits & KIND) == META)
		return false;
	return !((eight - 0x2121212121212121ULL) & ~eight & 0x8080808080808080ULL); /* none is a space, or less */
}

/* The first word of what memcached and its clients say most often, in one step. */
static u32 take_frequent(struct scan *scan, u64 eight)
{
	if (!scan->answers && eight >> 32 == FOUR('g', 'e', 't', ' '))
		return 4;
	if (!scan->answers && eight >> 32 == FOUR('s', 'e', 't', ' '))
		return 4;
	if (scan->answers && eight >> 16 == EIGHT(0, 0, 'V', 'A', 'L', 'U', 'E', ' '))
		return 6;
	return 0;
}

/* Whether the step ends with it: the line does, or nothing else is wanted of it. */
static bool take_text_letter(struct scan *scan, u8 letter)
{
	struct stream *stream = scan->stream;

	if (letter != ' ' && letter != '\r' && letter != '\n') {
		take_letter(scan, letter);
		take_digit(scan, letter - '0', 10);
		if (stream->state == FIRST && stream->letters > MOST_WORD)
			stream->lost = true;
		return stream->lost;
	}
	if (stream->state == FIRST) {
		if (scan->answers)
			begin_reply(scan);
		else
			begin_command(scan);
		begin_word(scan);
		stream->words = 1;
	} else if (stream->letters) {
		end_word(scan);
	}
	if (letter == '\n')
		end_text_line(scan);
	else if (letter == '\r')
		stream->state = REST;
	return letter == '\n' || stream->state == REST || stream->lost;
}

/* Letters of a line, as many as a step has. */
static __always_inline u32 take_text(struct scan *scan, u64 letters, u32 left)
{
	struct stream *stream = scan->stream;
	u64 eight = left >= STEP_BYTES ? letters : 0;
	u32 taken = 0, frequent = 0;

	if (stream->state == FIRST && !stream->letters) {
		if (!scan->answers)
			begin_asking(scan);
		else if (!(stream->traits & ANSWERING))
			begin_answer(scan);
		frequent = take_frequent(scan, eight);
	}
	if (frequent) {
		stream->word = eight >> (72 - 8 * frequent);
		stream->letters = frequent - 1;
		take_text_letter(scan, ' ');
		return frequent;
	}
	if (is_in_key(scan, eight)) {
		stream->word = eight;
		stream->letters = stream->letters < 255 - STEP_BYTES ? stream->letters + STEP_BYTES : 255;
		return STEP_BYTES;
	}
#pragma clang loop unroll(disable)
	while (taken < STEP_BYTES && taken < left) {
		taken++;
		if (take_text_letter(scan, letters >> 56))
			break;
		letters <<= 8;
	}
	return taken;
}

static void end_line(struct scan *scan)
{
	struct stream *stream = scan->stream;

	if (!scan->http)
		end_text_line(scan);
	else if (stream->state == CHUNK_REST)
		end_chunk_line(scan);
	else
		stream->state = stream->state == REST ? LINE : TRAILER;
}

static bool is_passing_over(const struct stream *stream)
{
	return stream->state == REST || stream->state == CHUNK_REST || stream->state == TRAILER_REST;
}

/* Eight letters of two words from the place on that is so many bytes, 1 to 8, into the first one. */
static u64 letters_from(const u64 *words, u32 bytes)
{
	return words[0] >> 8 * (bytes - 1) >> 8 | words[1] << (64 - 8 * bytes);
}

#define COLON_SPACE EIGHT('l', 'e', 'n', 'g', 't', 'h', ':', ' ')

/* Whether a line with the length of the content is as most are, of which these are the second and third eight letters: it
 * is known then, and the line passed over.
 */
static __noinline int take_short_length(struct stream *stream, u64 second, u64 third)
{
	u64 digits = bpf_be64_to_cpu(third);
	u32 number = 0, digit = digits >> 56, taken = 0;

	if ((second | LOWER) != bpf_cpu_to_be64(COLON_SPACE) || stream->traits & SIZED)
		return false;
#pragma clang loop unroll(disable)
	while (taken < STEP_BYTES - 1 && digit - '0' < 10) {
		number = number * 10 + (digit - '0');
		digits <<= 8;
		digit = digits >> 56;
		taken++;
	}
	if (!taken || digit != '\r')
		return false;
	stream->size = number;
	stream->traits |= SIZED;
	return true;
}

/* Whether a line of a head, which begins so many bytes into these words, is passed over like others: it does not end the
 * head, and its name is none that matters, for which so many letters as are left may be too few to tell.
 */
static __always_inline bool is_plain(struct stream *stream, const u64 *words, u32 bytes, u32 left)
{
	u64 lower = letters_from(words, bytes) | LOWER;
	u8 first = (u8)lower;

	if (first == ('\r' | 0x20) || first == ('\n' | 0x20))
		return false;
	if ((s32)left < TOLD_BYTES)
		return (s32)left > 0 && first != 'c' && first != 't';
	if (lower == bpf_cpu_to_be64(TRANSFER))
		return false;
	if (lower != bpf_cpu_to_be64(CONTENT) ||
	    (letters_from(words + 1, bytes) | LOWER) << 8 != bpf_cpu_to_be64(LENGTH_OF_IT))
		return true;
	return take_short_length(stream, letters_from(words + 1, bytes), letters_from(words + 2, bytes));
}

/* A line of a head that is not passed over begins so many bytes into these words, to which the stream has come. */
static __always_inline void stop_at(struct scan *scan, const u64 *words, u32 bytes)
{
	struct stream *stream = scan->stream;

	if ((u16)letters_from(words, bytes) != bpf_htons('\r' << 8 | '\n')) {
		stream->state = LINE;
		return;
	}
	stream->at += 2;
	end_head(scan);
}

/* Pass over what is left of a line as far as these bytes go, of a head also over lines that do not matter. */
static __always_inline void pass_over(struct scan *scan, const u64 *words)
{
	struct stream *stream = scan->stream;
	volatile const u32 *bytes = &scan->chunk->passable;
	u32 left = stream->end - stream->at;
	bool in_head = scan->http && stream->state == REST;

#pragma clang loop unroll(disable)
	for (u32 word = 0; word < WORDS_PASSED && word * STEP_BYTES < *bytes; word++) {
		u64 ends = newlines(words[word]);
		u32 line = through(ends), begins = word * STEP_BYTES + line;

		if (!ends)
			continue;
		if (in_head && is_plain(stream, words + word, line, left - begins)) {
			if (!(ends & (ends - 1)))
				continue;
			stream->at += begins; /* another line ends in this word */
			return;
		}
		stream->at += begins;
		if (in_head)
			stop_at(scan, words + word, line);
		else
			end_line(scan);
		return;
	}
	stream->at += *bytes;
}

/* Load what comes next, if there are fewer bytes than a step may need. */
static __always_inline bool load(struct scan *scan, u32 left)
{
	struct chunk *chunk = scan->chunk;
	u32 at = scan->stream->at, less = (left < LOADED_BYTES ? left : LOADED_BYTES) - 1;
	u64 behind;

	if (at - chunk->begins <= LAST_OFFSET && chunk->ends - at <= LOADED_BYTES &&
	    (chunk->ends == at + left || chunk->ends - at >= NEEDED_BYTES))
		return true;
	asm volatile(
		""
		: "+r"(less)); /* by one: the verifier must see that it is not 0, and its range, where it is used */
	if (less >= LOADED_BYTES || bpf_skb_load_bytes(scan->skb, at, chunk->words, less + 1))
		return false;
	chunk->begins = at;
	chunk->ends = at + less + 1;
	behind = less;
	asm volatile("" : "+r"(behind));
	if (behind >= LOADED_BYTES)
		return false;
	for (u32 word = 0; word < WORDS_BEHIND; word++)
		*(u64 *)((u8 *)chunk->words + behind + 1 + word * STEP_BYTES) = 0;
	return true;
}

/* How many bytes may be passed over: behind them is, as far as there is, what tells whether a line matters. */
static void limit(struct chunk *chunk, u32 at, u32 left)
{
	u32 loaded = chunk->ends - at;
	u32 bytes = loaded < left ? (loaded - WORDS_BEHIND * STEP_BYTES) & ~(STEP_BYTES - 1) : left;

	chunk->passable = bytes < WORDS_PASSED * STEP_BYTES ? bytes : WORDS_PASSED * STEP_BYTES;
}

/* One step; bpf_loop ends with 1. What is taken before the rest of a line has no end of it, and is passed over with it. */
static long look_on(u32 step, struct scan *scan)
{
	struct stream *stream = scan->stream;
	u32 left = stream->end - stream->at, taken;
	const u64 *words;
	u64 offset, eight;

	if ((s32)left <= 0 || stream->lost)
		return 1;
	if (!load(scan, left)) {
		stream->lost = true;
		return 1;
	}
	offset = stream->at - scan->chunk->begins;
	asm volatile("" : "+r"(offset));
	if (offset > LAST_OFFSET)
		return 1;
	asm volatile("" : "+r"(offset));
	words = (const u64 *)((const u8 *)scan->chunk->words + offset);
	limit(scan->chunk, stream->at, left);
	if (!is_passing_over(stream)) {
		eight = left >= STEP_BYTES ? bpf_be64_to_cpu(words[0]) : 0;
		taken = scan->http ? take_http(scan, words, eight, left)
				   : take_text(scan, bpf_be64_to_cpu(words[0]), left);
		if (!is_passing_over(stream)) {
			stream->at += taken;
			return 0;
		}
	}
	pass_over(scan, words);
	return 0;
}

#endif
