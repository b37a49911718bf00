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
#define MOST (1 << 16)	/* bytes of a record */
#define LEAST_ALIGN 64u /* alignments are known modulo this */

/* A record, and what lies behind its beginning. */
struct head {
	struct rmaext_part_record it;
	size_t shape_len; /* bytes */
	const uint8_t *shape, *dtype, *key;
	bool exported; /* key is a struct rmaext_export, and no key */
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

static bool frame_is_valid(const uint8_t *at, size_t len)
{
	static const uint16_t one = 1;
	const uint8_t order = *(const uint8_t *)&one ? 1 : 2;
	uint32_t rest, crc;

	if (len < FRAME || len > MOST || memcmp(at, "rmx1", 4) ||
	    at[4] != order || at[5] != sizeof(void *) || at[6])
		return false;
	memcpy(&rest, at + 8, sizeof(rest));
	memcpy(&crc, at + 12, sizeof(crc));
	return rest == len - FRAME && crc == crc_compute(at + FRAME, rest);
}

static bool head_read(struct head *h, const uint8_t *at, size_t len)
{
	struct rmaext_part_record *it = &h->it;
	size_t left;

	if (len < sizeof(h->it))
		return false;
	memcpy(&h->it, at, sizeof(h->it));
	h->shape_len = 8 * (size_t)it->dims;
	h->shape = at + sizeof(h->it);
	h->dtype = h->shape + h->shape_len;
	h->key = h->dtype + it->dtype_len;
	left = len - sizeof(h->it);
	if (left != h->shape_len + it->dtype_len + it->key_len)
		return false;
	/* no key leads to a device's memory */
	h->exported = it->access & RMAEXT_DEVICE && it->key_len;
	if (h->exported && it->key_len != sizeof(struct rmaext_export))
		return false;
	if (h->exported)
		it->key_len = 0;
	return (it->access & (RMAEXT_READ | RMAEXT_WRITE)) &&
	       it->access <= (RMAEXT_READ | RMAEXT_WRITE | RMAEXT_STORED |
			      RMAEXT_DEVICE) &&
	       it->base <= UINT64_MAX - it->size &&
	       it->address <= UINT64_MAX - it->size && it->fresh <= 1;
}

static uint64_t dimension(const struct head *h, size_t at)
{
	uint64_t n;

	memcpy(&n, h->shape + at, sizeof(n));
	return n;
}

/* Does the shape, which NumPy can have, give as many bytes as there are? */
static bool shape_fits(const struct head *h, uint64_t itemsize)
{
	uint64_t bytes = itemsize;
	bool fits = true, none = false;

	for (size_t at = 0; at < h->shape_len; at += 8) {
		const uint64_t n = dimension(h, at);

		if (n > INT64_MAX)
			return false;
		none |= !n;
		fits &= !__builtin_mul_overflow(bytes, n, &bytes);
	}
	return none ? !h->it.size : fits && bytes == h->it.size;
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
	bool sized = false, keyed;

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
			all.size = h.it.size;
			all.base = h.it.base;
			all.access = h.it.access;
			all.align = (uint8_t)(h.it.address % LEAST_ALIGN);
		}
		keyed = h.it.size && !(h.it.access & RMAEXT_DEVICE);
		if (!bytes_equal(h.dtype, h.it.dtype_len, first.dtype,
				 first.it.dtype_len) ||
		    !h.it.parts != !first.it.parts ||
		    (keyed && sized && h.it.key_len != all.key_len))
			return -FI_EINVAL;
		if (keyed && !sized)
			all.key_len = h.it.key_len;
		sized |= keyed;
		if (h.it.size != first.it.size)
			all.same &= ~(unsigned int)RMAEXT_SAME_SIZE;
		if (h.it.base != first.it.base)
			all.same &= ~(unsigned int)RMAEXT_SAME_BASE;
		if (h.it.access != first.it.access)
			all.same &= ~(unsigned int)RMAEXT_SAME_ACCESS;
		if ((h.it.address ^ first.it.address) % LEAST_ALIGN)
			all.same &= ~(unsigned int)RMAEXT_SAME_ALIGN;
		if (!bytes_equal(h.key, h.it.key_len, first.key,
				 first.it.key_len))
			all.same &= ~(unsigned int)RMAEXT_SAME_KEY;
		if (!bytes_equal(h.shape, h.shape_len, first.shape,
				 first.shape_len))
			all.same &= ~(unsigned int)RMAEXT_SAME_SHAPE;
		if (h.it.parts != first.it.parts)
			all.same &= ~(unsigned int)RMAEXT_SAME_PARTS;
		if (h.shape_len / 8 > all.dims)
			all.dims = h.shape_len / 8;
		all.elsewhere += h.it.size && h.it.block.fd < 0;
		all.fresh += h.it.fresh;
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
			value = h.it.size;
			break;
		case RMAEXT_SAME_BASE:
			value = h.it.base;
			break;
		case RMAEXT_SAME_ACCESS:
			value = h.it.access;
			break;
		case RMAEXT_SAME_ALIGN:
			value = h.it.address % LEAST_ALIGN;
			break;
		case RMAEXT_SAME_PARTS:
			value = h.it.parts;
			break;
		case RMAEXT_SAME_KEY:
			from = h.key;
			if (width > h.it.key_len) /* a rank without memory */
				memset(out, 0, width);
			memcpy(out, from,
			       h.it.key_len < width ? h.it.key_len : width);
			break;
		case RMAEXT_SAME_SHAPE: /* the number of dimensions, then these
					 */
			memset(out, 0, width);
			from = h.shape;
			for (size_t at = 0; at < h.shape_len && at + 8 < width;
			     at += 8) {
				value = dimension(&h, at);
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
		if (h.exported) {
			ways->route[i] = RMAEXT_IPC;
			ways->address[i] = (uintptr_t)h.key;
		}
		if (h.it.access & RMAEXT_DEVICE)
			continue; /* else the network's messages reach it */
		reach = rmaext_neighbour_reach(neighbour[i]);
		if (reach & RMAEXT_CAN_MAP && h.it.block.fd >= 0) {
			ret = rmaext_neighbour_map(neighbour[i], &h.it.block,
						   h.it.size, &ways->map[i]);
			/* with a key there is another way */
			if (ret && !(ret == -EREMOTE && h.it.key_len))
				return ret;
			if (!ret)
				ways->route[i] = RMAEXT_DIRECT;
		} else if (reach & RMAEXT_CAN_MAP && !h.it.size) {
			ways->route[i] = RMAEXT_DIRECT; /* nothing to reach */
		} else if (rmx_neighbour_copies(neighbour[i])) {
			ways->route[i] = RMAEXT_CMA;
			ways->address[i] = h.it.address;
		}
	}
	return 0;
}
