/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What this library uses of UCP's binary interface, UCX 1.20 and later:
 * numbers, the layout of structs, functions. Thus it is built without UCX. A
 * struct says by its field_mask which fields are set, and newer releases add
 * fields at its end. UCP may copy a struct as a whole: `later` is room for what
 * is not used. tests/ucx/abi.c compares all of it with UCX's own headers.
 */
#ifndef RMAEXT_UCX_ABI_H
#define RMAEXT_UCX_ABI_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#define UCP_API_1_20 1, 20 /* what ucp_init_version() is asked for */

typedef int8_t ucs_status_t; /* an enum of one byte; errors are negative */
enum {
	UCS_OK = 0,
	UCS_INPROGRESS = 1,
	UCS_ERR_NO_RESOURCE = -2,
	UCS_ERR_IO_ERROR = -3,
	UCS_ERR_NO_MEMORY = -4,
	UCS_ERR_INVALID_PARAM = -5,
	UCS_ERR_UNREACHABLE = -6,
	UCS_ERR_INVALID_ADDR = -7,
	UCS_ERR_NOT_IMPLEMENTED = -8,
	UCS_ERR_NO_DEVICE = -14,
	UCS_ERR_BUSY = -15,
	UCS_ERR_CANCELED = -16,
	UCS_ERR_TIMED_OUT = -20,
	UCS_ERR_UNSUPPORTED = -22,
	UCS_ERR_REJECTED = -23,
	UCS_ERR_NOT_CONNECTED = -24,
	UCS_ERR_CONNECTION_RESET = -25,
	UCS_ERR_ENDPOINT_TIMEOUT = -80,
	UCS_ERR_LAST = -100,
};

/* A request, NULL: it is complete, or an error as the address of nothing. */
typedef void *ucs_status_ptr_t;
#define UCS_PTR_IS_ERR(p) ((uintptr_t)(p) >= (uintptr_t)UCS_ERR_LAST)
#define UCS_PTR_STATUS(p) ((ucs_status_t)(intptr_t)(p))

typedef struct ucp_config ucp_config_t;
typedef struct ucp_context *ucp_context_h;
typedef struct ucp_worker *ucp_worker_h;
typedef struct ucp_ep *ucp_ep_h;
typedef struct ucp_mem *ucp_mem_h;
typedef struct ucp_rkey *ucp_rkey_h;
typedef struct ucp_address ucp_address_t;

enum {
	UCP_PARAM_FIELD_FEATURES = 1 << 0,
	UCP_PARAM_FIELD_MT_WORKERS_SHARED = 1 << 5,
	UCP_FEATURE_RMA = 1 << 1,
	UCP_FEATURE_WAKEUP = 1 << 4,
	UCP_FEATURE_AM = 1 << 6,
};

typedef struct {
	uint64_t field_mask;
	uint64_t features;
	size_t request_size;
	void (*request_init)(void *request);
	void (*request_cleanup)(void *request);
	uint64_t tag_sender_mask;
	int mt_workers_shared;
	uint64_t later[16];
} ucp_params_t;

enum {
	UCP_WORKER_PARAM_FIELD_THREAD_MODE = 1 << 0,
	UCS_THREAD_MODE_SERIALIZED = 1,
};

typedef struct {
	uint64_t field_mask;
	int thread_mode;
	uint64_t later[40];
} ucp_worker_params_t;

enum {
	UCP_EP_PARAM_FIELD_REMOTE_ADDRESS = 1 << 0,
	UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE = 1 << 1,
	UCP_EP_PARAM_FIELD_ERR_HANDLER = 1 << 2,
	UCP_ERR_HANDLING_MODE_PEER = 1,
};

typedef struct {
	uint64_t field_mask;
	const ucp_address_t *address;
	int err_mode;
	struct {
		void (*cb)(void *arg, ucp_ep_h ep, ucs_status_t status);
		void *arg;
	} err_handler;
	uint64_t later[24];
} ucp_ep_params_t;

enum { UCP_EP_ATTR_FIELD_TRANSPORTS = 1 << 3 };

typedef struct {
	const char *transport_name, *device_name;
} ucp_transport_entry_t;

typedef struct {
	uint64_t field_mask;
	char name[32];
	struct sockaddr_storage local_sockaddr, remote_sockaddr;
	struct {
		ucp_transport_entry_t *entries;
		unsigned int num_entries; /* room; then how many there are */
		size_t entry_size;
	} transports;
	uint64_t later[16];
} ucp_ep_attr_t;

enum {
	UCP_MEM_MAP_PARAM_FIELD_ADDRESS = 1 << 0,
	UCP_MEM_MAP_PARAM_FIELD_LENGTH = 1 << 1,
	UCP_MEM_MAP_PARAM_FIELD_FLAGS = 1 << 2,
	UCP_MEM_MAP_PARAM_FIELD_PROT = 1 << 3,
	UCP_MEM_MAP_NONBLOCK = 1 << 0,
	UCP_MEM_MAP_PROT_LOCAL_READ = 1 << 0,
	UCP_MEM_MAP_PROT_LOCAL_WRITE = 1 << 1,
	UCP_MEM_MAP_PROT_REMOTE_READ = 1 << 8,
	UCP_MEM_MAP_PROT_REMOTE_WRITE = 1 << 9,
};

typedef struct {
	uint64_t field_mask;
	void *address;
	size_t length;
	unsigned int flags, prot;
	uint64_t later[16];
} ucp_mem_map_params_t;

enum {
	UCP_MEM_ADVISE_PARAM_FIELD_ADDRESS = 1 << 0,
	UCP_MEM_ADVISE_PARAM_FIELD_LENGTH = 1 << 1,
	UCP_MEM_ADVISE_PARAM_FIELD_ADVICE = 1 << 2,
	UCP_MADV_WILLNEED = 1,
};

typedef struct {
	uint64_t field_mask;
	void *address;
	size_t length;
	int advice;
	uint64_t later[8];
} ucp_mem_advise_params_t;

enum {
	UCP_MEM_ATTR_FIELD_ADDRESS = 1 << 0,
	UCP_MEM_ATTR_FIELD_LENGTH = 1 << 1,
};

typedef struct {
	uint64_t field_mask;
	void *address;
	size_t length;
	uint64_t later[8];
} ucp_mem_attr_t;

enum {
	UCP_OP_ATTR_FIELD_CALLBACK = 1 << 1,
	UCP_OP_ATTR_FIELD_USER_DATA = 1 << 2,
	UCP_OP_ATTR_FIELD_FLAGS = 1 << 4,
	UCP_OP_ATTR_FIELD_MEMH = 1 << 8,
	UCP_EP_CLOSE_FLAG_FORCE = 1 << 0,
	UCP_AM_SEND_FLAG_EAGER = 1 << 1,
};

typedef struct {
	uint32_t op_attr_mask;
	uint32_t flags;
	void *request;
	union {
		void (*send)(void *request, ucs_status_t status, void *data);
	} cb;
	uint64_t datatype;
	void *user_data;
	void *reply_buffer;
	int memory_type;
	void *recv_info;
	ucp_mem_h memh;
	uint64_t later[16];
} ucp_request_param_t;

enum {
	UCP_AM_RECV_ATTR_FLAG_RNDV = 1 << 17,
	UCP_AM_HANDLER_PARAM_FIELD_ID = 1 << 0,
	UCP_AM_HANDLER_PARAM_FIELD_FLAGS = 1 << 1,
	UCP_AM_HANDLER_PARAM_FIELD_CB = 1 << 2,
	UCP_AM_HANDLER_PARAM_FIELD_ARG = 1 << 3,
	UCP_AM_FLAG_WHOLE_MSG = 1 << 0,
};

typedef struct {
	uint64_t recv_attr;
	ucp_ep_h reply_ep;
} ucp_am_recv_param_t;

typedef struct {
	uint64_t field_mask;
	unsigned int id;
	uint32_t flags;
	ucs_status_t (*cb)(void *arg, const void *header, size_t header_length,
			   void *data, size_t length,
			   const ucp_am_recv_param_t *param);
	void *arg;
	uint64_t later[8];
} ucp_am_handler_param_t;

/* -- the functions, which are looked up in a library that is opened */

const char *ucs_status_string(ucs_status_t status);
void ucp_get_version(unsigned int *major, unsigned int *minor,
		     unsigned int *release);
ucs_status_t ucp_config_read(const char *prefix, const char *file,
			     ucp_config_t **config_p);
ucs_status_t ucp_config_modify(ucp_config_t *config, const char *name,
			       const char *value);
void ucp_config_release(ucp_config_t *config);
ucs_status_t ucp_init_version(unsigned int major, unsigned int minor,
			      const ucp_params_t *params,
			      const ucp_config_t *config,
			      ucp_context_h *context_p);
void ucp_cleanup(ucp_context_h context);
ucs_status_t ucp_worker_create(ucp_context_h context,
			       const ucp_worker_params_t *params,
			       ucp_worker_h *worker_p);
void ucp_worker_destroy(ucp_worker_h worker);
ucs_status_t ucp_worker_get_address(ucp_worker_h worker,
				    ucp_address_t **address_p, size_t *len_p);
void ucp_worker_release_address(ucp_worker_h worker, ucp_address_t *address);
ucs_status_t
ucp_worker_set_am_recv_handler(ucp_worker_h worker,
			       const ucp_am_handler_param_t *param);
unsigned int ucp_worker_progress(ucp_worker_h worker);
ucs_status_t ucp_worker_get_efd(ucp_worker_h worker, int *fd);
ucs_status_t ucp_worker_arm(ucp_worker_h worker);
ucs_status_t ucp_worker_signal(ucp_worker_h worker);
ucs_status_t ucp_ep_create(ucp_worker_h worker, const ucp_ep_params_t *params,
			   ucp_ep_h *ep_p);
ucs_status_t ucp_ep_query(ucp_ep_h ep, ucp_ep_attr_t *attr);
ucs_status_ptr_t ucp_ep_close_nbx(ucp_ep_h ep,
				  const ucp_request_param_t *param);
ucs_status_ptr_t ucp_ep_flush_nbx(ucp_ep_h ep,
				  const ucp_request_param_t *param);
ucs_status_ptr_t ucp_am_send_nbx(ucp_ep_h ep, unsigned int id,
				 const void *header, size_t header_length,
				 const void *buffer, size_t count,
				 const ucp_request_param_t *param);
ucs_status_ptr_t ucp_put_nbx(ucp_ep_h ep, const void *buffer, size_t count,
			     uint64_t remote_addr, ucp_rkey_h rkey,
			     const ucp_request_param_t *param);
ucs_status_ptr_t ucp_get_nbx(ucp_ep_h ep, void *buffer, size_t count,
			     uint64_t remote_addr, ucp_rkey_h rkey,
			     const ucp_request_param_t *param);
void ucp_request_free(void *request);
ucs_status_t ucp_mem_map(ucp_context_h context,
			 const ucp_mem_map_params_t *params, ucp_mem_h *memh_p);
ucs_status_t ucp_mem_unmap(ucp_context_h context, ucp_mem_h memh);
ucs_status_t ucp_mem_query(ucp_mem_h memh, ucp_mem_attr_t *attr);
ucs_status_t ucp_mem_advise(ucp_context_h context, ucp_mem_h memh,
			    ucp_mem_advise_params_t *params);
ucs_status_t ucp_rkey_pack(ucp_context_h context, ucp_mem_h memh,
			   void **buffer_p, size_t *size_p);
void ucp_rkey_buffer_release(void *buffer);
ucs_status_t ucp_ep_rkey_unpack(ucp_ep_h ep, const void *buffer,
				ucp_rkey_h *rkey_p);
void ucp_rkey_destroy(ucp_rkey_h rkey);

#endif
