/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The records of all ranks of a window, as rmaext/_comm/window_record.py packs
 * them, are read in one pass here, which finds out whether all are valid, and
 * which columns are the same on all ranks. Where one is not valid this file
 * says no more than that; window_record.py, which reads one record at a time,
 * says what is wrong with it. Records come from other processes: nothing in
 * them is taken for granted.
 */
#include "win/window.h"

#include <errno.h>

#define FRAME 16 /* magic, byte order, pointer size, status, 0, length, crc */
#define HEAD 67	 /* bytes of what head_read() reads */
#define MOST (1 << 16)	/* bytes of a record */
#define LEAST_ALIGN 64u /* alignments are known modulo this */

struct head {
	uint64_t size, base, address;
	struct rmaext_block block; /* in an arena; its fd is -1: in none */
	uint8_t access, fresh;
	size_t shape_len, dtype_len, key_len; /* bytes */
	uint32_t parts;
	const uint8_t *shape, *dtype, *key;
};

/* The CRC-32 of zlib, half a byte at a time. */
static uint32_t crc_compute(const uint8_t *at, size_t len)
{
	static const uint32_t table[16] = {
		0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac,
		0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
		0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c,
		0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c,
	};
	uint32_t crc = ~0u;

	for (; len; len--, at++) {
		crc = crc >> 4 ^ table[(crc ^ *at) & 15];
		crc = crc >> 4 ^ table[(crc ^ *at >> 4) & 15];
	}
	return ~crc;
}

static uint64_t number_read(const uint8_t *at, int bytes)
{
	uint64_t value = 0;

	while (bytes)
		value = value << 8 | at[--bytes];
	return value;
}

static bool frame_is_valid(const uint8_t *at, size_t len)
{
	static const uint16_t one = 1;
	const uint8_t order = *(const uint8_t *)&one ? 1 : 2;

	return len >= FRAME && len <= MOST && !memcmp(at, "rmx1", 4) &&
	       at[4] == order && at[5] == sizeof(void *) && !at[6] &&
	       number_read(at + 8, 4) == len - FRAME &&
	       number_read(at + 12, 4) == crc_compute(at + FRAME, len - FRAME);
}

static bool head_read(struct head *h, const uint8_t *at, size_t len)
{
	if (len < HEAD)
		return false;
	*h = (struct head){
		.size = number_read(at, 8),
		.base = number_read(at + 8, 8),
		.address = number_read(at + 16, 8),
		.block =
			{
				.fd = (int64_t)number_read(at + 24, 8),
				.inode = number_read(at + 32, 8),
				.size = number_read(at + 40, 8),
				.offset = number_read(at + 48, 8),
			},
		.access = at[56],
		.shape_len = 8 * (size_t)at[57],
		.dtype_len = number_read(at + 58, 2),
		.key_len = number_read(at + 60, 2),
		.parts = (uint32_t)number_read(at + 62, 4),
		.fresh = at[66],
		.shape = at + HEAD,
	};
	h->dtype = h->shape + h->shape_len;
	h->key = h->dtype + h->dtype_len;
	return len - HEAD == h->shape_len + h->dtype_len + h->key_len &&
	       (h->access & (RMAEXT_READ | RMAEXT_WRITE)) &&
	       h->access <= (RMAEXT_READ | RMAEXT_WRITE | RMAEXT_STORED) &&
	       h->base <= UINT64_MAX - h->size &&
	       h->address <= UINT64_MAX - h->size && h->fresh <= 1;
}

/* Does the shape, which NumPy can have, give as many bytes as there are? */
static bool shape_fits(const struct head *h, uint64_t itemsize)
{
	uint64_t bytes = itemsize;
	bool fits = true, none = false;

	for (size_t at = 0; at < h->shape_len; at += 8) {
		const uint64_t n = number_read(h->shape + at, 8);

		if (n > INT64_MAX)
			return false;
		none |= !n;
		fits &= !__builtin_mul_overflow(bytes, n, &bytes);
	}
	return none ? !h->size : fits && bytes == h->size;
}

static bool bytes_equal(const uint8_t *a, size_t n, const uint8_t *b, size_t m)
{
	return n == m && !memcmp(a, b, n);
}

int rmaext_records_check(const uint8_t *data, const int32_t *lengths,
			 int64_t count, uint64_t itemsize,
			 struct rmaext_records *records_p)
{
	struct rmaext_records all = {.same = RMAEXT_SAME | RMAEXT_SAME_SHAPE |
					     RMAEXT_SAME_PARTS};
	struct head first = {0}, h;
	bool sized = false;

	for (int64_t rank = 0; rank < count; rank++) {
		const size_t len =
			lengths[rank] < 0 ? 0 : (size_t)lengths[rank];

		if (!frame_is_valid(data, len) ||
		    !head_read(&h, data + FRAME, len - FRAME) ||
		    !shape_fits(&h, itemsize))
			return -FI_EINVAL;
		data += len;
		if (!rank) {
			first = h;
			all.size = h.size;
			all.base = h.base;
			all.access = h.access;
			all.align = (uint8_t)(h.address % LEAST_ALIGN);
		}
		if (!bytes_equal(h.dtype, h.dtype_len, first.dtype,
				 first.dtype_len) ||
		    !h.parts != !first.parts ||
		    (h.size && sized && h.key_len != all.key_len))
			return -FI_EINVAL;
		if (h.size && !sized)
			all.key_len = h.key_len;
		sized |= h.size != 0;
		if (h.size != first.size)
			all.same &= ~(unsigned int)RMAEXT_SAME_SIZE;
		if (h.base != first.base)
			all.same &= ~(unsigned int)RMAEXT_SAME_BASE;
		if (h.access != first.access)
			all.same &= ~(unsigned int)RMAEXT_SAME_ACCESS;
		if ((h.address ^ first.address) % LEAST_ALIGN)
			all.same &= ~(unsigned int)RMAEXT_SAME_ALIGN;
		if (!bytes_equal(h.key, h.key_len, first.key, first.key_len))
			all.same &= ~(unsigned int)RMAEXT_SAME_KEY;
		if (!bytes_equal(h.shape, h.shape_len, first.shape,
				 first.shape_len))
			all.same &= ~(unsigned int)RMAEXT_SAME_SHAPE;
		if (h.parts != first.parts)
			all.same &= ~(unsigned int)RMAEXT_SAME_PARTS;
		if (h.shape_len / 8 > all.dims)
			all.dims = h.shape_len / 8;
		all.elsewhere += h.size && h.block.fd < 0;
		all.fresh += h.fresh;
	}
	*records_p = all;
	return 0;
}

void rmaext_records_column(const uint8_t *data, const int32_t *lengths,
			   int64_t count, int column, size_t width, void *to)
{
	char *out = to;

	for (int64_t rank = 0; rank < count; rank++) {
		const size_t len =
			lengths[rank] < 0 ? 0 : (size_t)lengths[rank];
		const uint8_t *from = NULL;
		uint64_t value = 0;
		struct head h;

		if (len < FRAME || !head_read(&h, data + FRAME, len - FRAME))
			return; /* the caller has checked the records */
		data += len;
		switch (column) {
		case RMAEXT_SAME_SIZE:
			value = h.size;
			break;
		case RMAEXT_SAME_BASE:
			value = h.base;
			break;
		case RMAEXT_SAME_ACCESS:
			value = h.access;
			break;
		case RMAEXT_SAME_ALIGN:
			value = h.address % LEAST_ALIGN;
			break;
		case RMAEXT_SAME_PARTS:
			value = h.parts;
			break;
		case RMAEXT_SAME_KEY:
			from = h.key;
			if (width > h.key_len) /* a rank without memory */
				memset(out, 0, width);
			memcpy(out, from,
			       h.key_len < width ? h.key_len : width);
			break;
		case RMAEXT_SAME_SHAPE: /* the number of dimensions, then these
					 */
			memset(out, 0, width);
			from = h.shape;
			for (size_t at = 0; at < h.shape_len && at + 8 < width;
			     at += 8) {
				value = number_read(from + at, 8);
				memcpy(out + 8 + at, &value, 8);
			}
			value = h.shape_len / 8;
			memcpy(out, &value, 8);
			break;
		}
		if (!from && width == 1)
			*out = (char)value;
		else if (!from)
			memcpy(out, &value, sizeof(value));
		out += width;
	}
}

int rmaext_records_ways(const uint8_t *data, const int32_t *lengths,
			const int64_t *here, int64_t count,
			rmaext_neighbour *const *neighbour,
			const struct rmaext_ways *ways)
{
	int64_t rank = 0;
	struct head h;
	int reach, ret;

	for (int64_t i = 0; i < count; i++) {
		for (; rank < here[i]; rank++)
			data += lengths[rank];
		if (!neighbour[i] ||
		    !head_read(&h, data + FRAME, (size_t)lengths[rank] - FRAME))
			continue;
		reach = rmaext_neighbour_reach(neighbour[i]);
		if (reach & RMAEXT_CAN_MAP && h.block.fd >= 0) {
			ret = rmaext_neighbour_map(neighbour[i], &h.block,
						   h.size, &ways->map[i]);
			/* with a key there is another way */
			if (ret && !(ret == -EREMOTE && h.key_len))
				return ret;
			if (!ret)
				ways->route[i] = RMAEXT_DIRECT;
		} else if (reach & RMAEXT_CAN_MAP && !h.size) {
			ways->route[i] = RMAEXT_DIRECT; /* nothing to reach */
		} else if (rmx_neighbour_copies(neighbour[i])) {
			ways->route[i] = RMAEXT_CMA;
			ways->address[i] = h.address;
		}
	}
	return 0;
}
