/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * libFuzzer: any bytes as the records of a window's ranks, which are read in
 * one pass, and the columns of those that pass. Records and columns have not a
 * byte more than they need, and AddressSanitizer's red zones on both sides.
 *
 * The first bytes say how many ranks there are, and what is made good: frames,
 * whose checksum keeps all else from being reached; copies of one record, with
 * a byte changed, since ranks that differ in the wrong place are refused.
 */
#include "shm/neighbour.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, FRAME = 16, LONGEST = (1 << 16) + 64 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* As zlib.crc32, a bit at a time. */
static uint32_t crc_of(const uint8_t *at, size_t len)
{
	uint32_t crc = ~0u;

	for (; len; len--, at++) {
		crc ^= *at;
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
	}
	return ~crc;
}

static void made_good(uint8_t *record, size_t len)
{
	const uint16_t one = 1;
	const uint32_t rest = (uint32_t)(len - FRAME);
	const uint32_t crc = crc_of(record + FRAME, rest);

	memcpy(record, "rmx1", 4);
	record[4] = *(const uint8_t *)&one ? 1 : 2;
	record[5] = sizeof(void *);
	record[6] = 0;
	memcpy(record + 8, &rest, sizeof(rest));
	memcpy(record + 12, &crc, sizeof(crc));
}

/* Of the ranks whose bits are set; the first of them is a neighbour. */
static void ways(const uint8_t *records, const int32_t *lengths, int64_t count,
		 unsigned int bits)
{
	static struct rmaext_neighbour it = {.reach = RMAEXT_CAN_COPY};
	rmaext_neighbour *neighbours[RANKS] = {&it};
	int64_t here[RANKS], n = 0;
	struct rmaext_ways found;

	for (int64_t rank = 0; rank < count; rank++)
		if (bits >> rank & 1)
			here[n++] = rank;
	found.route = calloc((size_t)n, sizeof(*found.route));
	found.map = calloc((size_t)n, sizeof(*found.map));
	found.address = calloc((size_t)n, sizeof(*found.address));
	if (rmaext_records_ways(records, lengths, here, n, neighbours,
				&found) ||
	    (n && found.route[0] != RMAEXT_CMA))
		abort();
	free(found.route);
	free(found.map);
	free(found.address);
}

static void column(const uint8_t *records, const int32_t *lengths,
		   int64_t count, int which, size_t width)
{
	void *to = malloc((size_t)count * width);

	rmaext_records_column(records, lengths, count, which, width, to);
	free(to);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	int32_t lengths[RANKS] = {0};
	struct rmaext_records all;
	uint8_t *records;
	size_t at = 0, len;
	uint64_t itemsize;
	int64_t count;
	unsigned int here;
	bool frames, copies;

	if (size < 3 || size > LONGEST)
		return 0;
	count = 1 + data[0] % RANKS;
	frames = data[0] & 16;
	copies = data[0] & 32;
	here = (data[0] >> 2 & 3) | (data[0] >> 6) << 2;
	itemsize = data[1];
	len = data[2]; /* of all records but the last; or the byte */
	data += 3;
	size -= 3;
	if (copies) {
		records = malloc(size * (size_t)count);
		for (int64_t rank = 0; rank < count; rank++) {
			memcpy(records + at, data, size);
			if (rank && len < size)
				records[at + len] ^= (uint8_t)rank;
			lengths[rank] = (int32_t)size;
			at += size;
		}
	} else {
		records = malloc(size);
		memcpy(records, data, size);
		for (int64_t rank = 0; rank < count; rank++) {
			lengths[rank] =
				(int32_t)(len < size - at ? len : size - at);
			if (rank == count - 1)
				lengths[rank] = (int32_t)(size - at);
			at += (size_t)lengths[rank];
		}
	}
	at = 0;
	for (int64_t rank = 0; frames && rank < count; rank++) {
		if (lengths[rank] >= FRAME)
			made_good(records + at, (size_t)lengths[rank]);
		at += (size_t)lengths[rank];
	}
	if (!rmaext_records_check(records, lengths, count, itemsize, &all)) {
		column(records, lengths, count, RMAEXT_SAME_SIZE, 8);
		column(records, lengths, count, RMAEXT_SAME_BASE, 8);
		column(records, lengths, count, RMAEXT_SAME_ACCESS, 1);
		column(records, lengths, count, RMAEXT_SAME_ALIGN, 1);
		column(records, lengths, count, RMAEXT_SAME_PARTS, 8);
		column(records, lengths, count, RMAEXT_SAME_KEY, all.key_len);
		column(records, lengths, count, RMAEXT_SAME_SHAPE,
		       8 * (1 + all.dims));
		ways(records, lengths, count, here);
	}
	free(records);
	return 0;
}
