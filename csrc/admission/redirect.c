/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A libfabric finds listen(), connect(), accept() and recv() of the C library
 * in slots of its own memory, which the loader has filled. This puts our
 * functions there. The tables are those of the ELF gABI; a slot is written only
 * if it lies in a segment of that object which the loader could write, and
 * names an undefined symbol.
 */
#define _GNU_SOURCE
#include "admission/admission.h"

#include <elf.h>
#include <link.h>
#include <sys/mman.h>

#if defined(__x86_64__)
#define IS_SLOT(type) \
	((type) == R_X86_64_JUMP_SLOT || (type) == R_X86_64_GLOB_DAT)
#elif defined(__aarch64__)
#define IS_SLOT(type) \
	((type) == R_AARCH64_JUMP_SLOT || (type) == R_AARCH64_GLOB_DAT)
#endif

#ifdef IS_SLOT

/* One loaded object, by its dynamic section. */
struct object {
	const struct dl_phdr_info *info;
	const Elf64_Sym *symbols;
	const char *names;
	const Elf64_Rela *tables[2];
	size_t names_len, counts[2];
};

/* Returns the segment of that type which has these bytes, or NULL. */
static const Elf64_Phdr *object_segment(const struct object *o, uint32_t type,
					uint64_t offset, uint64_t len)
{
	for (int i = 0; i < o->info->dlpi_phnum; i++) {
		const Elf64_Phdr *p = &o->info->dlpi_phdr[i];

		if (p->p_type == type && offset >= p->p_vaddr &&
		    len <= p->p_memsz &&
		    offset - p->p_vaddr <= p->p_memsz - len)
			return p;
	}
	return NULL;
}

/* The loader has made some addresses in the dynamic section absolute. */
static const void *object_at(const struct object *o, uint64_t value)
{
	const uint64_t base = o->info->dlpi_addr;

	if (value >= base)
		value -= base;
	if (!object_segment(o, PT_LOAD, value, 1))
		return NULL;
	return (const void *)(uintptr_t)(base + value);
}

static bool object_read(struct object *o)
{
	const Elf64_Dyn *d = NULL;
	bool rela = true;

	for (int i = 0; i < o->info->dlpi_phnum && !d; i++)
		if (o->info->dlpi_phdr[i].p_type == PT_DYNAMIC)
			d = object_at(o, o->info->dlpi_phdr[i].p_vaddr);
	for (; d && d->d_tag != DT_NULL; d++) {
		const uint64_t value = d->d_un.d_val;

		switch (d->d_tag) {
		case DT_SYMTAB:
			o->symbols = object_at(o, value);
			break;
		case DT_STRTAB:
			o->names = object_at(o, value);
			break;
		case DT_STRSZ:
			o->names_len = value;
			break;
		case DT_JMPREL:
			o->tables[0] = object_at(o, value);
			break;
		case DT_PLTRELSZ:
			o->counts[0] = value / sizeof(Elf64_Rela);
			break;
		case DT_RELA:
			o->tables[1] = object_at(o, value);
			break;
		case DT_RELASZ:
			o->counts[1] = value / sizeof(Elf64_Rela);
			break;
		case DT_PLTREL:
			rela = rela && value == DT_RELA;
			break;
		case DT_RELAENT:
			rela = rela && value == sizeof(Elf64_Rela);
			break;
		}
	}
	return rela && o->symbols && o->names;
}

/*
 * The loader has made the whole pages of PT_GNU_RELRO read-only. Other threads
 * go on reading the slot, which is aligned, meanwhile. False: it stays as it
 * was.
 */
static bool slot_write(const struct object *o, uint64_t offset, uintptr_t value)
{
	const Elf64_Phdr *p = object_segment(o, PT_GNU_RELRO, offset, 8);
	const uintptr_t base = o->info->dlpi_addr, size = rmx_page();
	uintptr_t *slot = (uintptr_t *)(base + offset);
	const uintptr_t page = (uintptr_t)slot & ~(size - 1);
	const bool locked =
		p && page < ((base + p->p_vaddr + p->p_memsz) & ~(size - 1));

	if (__atomic_load_n(slot, __ATOMIC_RELAXED) == value)
		return true;
	if (locked && mprotect((void *)page, size, PROT_READ | PROT_WRITE))
		return false;
	__atomic_store_n(slot, value, __ATOMIC_RELEASE);
	if (locked)
		mprotect((void *)page, size, PROT_READ);
	return true;
}

/* What the slots of an object are now. */
struct redirected {
	const void *inside;
	bool listen, accept, connect, failed;
};

static void object_redirect(const struct object *o, const Elf64_Rela *r,
			    struct redirected *done)
{
	const Elf64_Sym *symbol = &o->symbols[ELF64_R_SYM(r->r_info)];
	const Elf64_Phdr *p = object_segment(o, PT_LOAD, r->r_offset, 8);
	const char *name = o->names;

	if (!IS_SLOT(ELF64_R_TYPE(r->r_info)) || symbol->st_shndx ||
	    symbol->st_name >= o->names_len || !p || !(p->p_flags & PF_W) ||
	    r->r_offset % 8)
		return;
	name += symbol->st_name;
	if (!strcmp(name, "listen"))
		done->listen = slot_write(o, r->r_offset,
					  (uintptr_t)rmx_admission_listen);
	else if (!strcmp(name, "accept"))
		done->accept = slot_write(o, r->r_offset,
					  (uintptr_t)rmx_admission_accept);
	else if (!strcmp(name, "connect"))
		done->connect = slot_write(o, r->r_offset,
					   (uintptr_t)rmx_admission_connect);
	else if (!strcmp(name, "recv"))
		slot_write(o, r->r_offset, (uintptr_t)rmx_admission_recv);
}

/* A libfabric loads its plug-ins by the name of their files. */
static bool is_plugin(const char *path)
{
	const size_t len = strlen(path);

	return len > 6 && !strcmp(path + len - 6, "-fi.so");
}

static bool object_has(const struct dl_phdr_info *info, const void *address)
{
	const struct object o = {.info = info};
	const uint64_t offset = (uintptr_t)address - info->dlpi_addr;

	return object_segment(&o, PT_LOAD, offset, 1);
}

static int object_visit(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct object o = {.info = info};
	struct redirected *done = arg;

	(void)size;
	if (!info->dlpi_name ||
	    (!is_plugin(info->dlpi_name) && !object_has(info, done->inside)) ||
	    !object_read(&o))
		return 0;
	done->listen = done->accept = done->connect = false;
	for (int i = 0; i < 2; i++)
		for (size_t k = 0; o.tables[i] && k < o.counts[i]; k++)
			object_redirect(&o, &o.tables[i][k], done);
	done->failed |= done->listen && !(done->accept && done->connect);
	return 0;
}

bool rmx_redirect(const void *inside)
{
	struct redirected done = {.inside = inside};

	dl_iterate_phdr(object_visit, &done);
	return !done.failed;
}

#else

bool rmx_redirect(const void *inside)
{
	(void)inside;
	return false;
}

#endif
