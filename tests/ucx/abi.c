/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Prints the layout of UCP's interface: as csrc/net/ucx/abi.h has it, or, with
 * -DTHEIRS, as UCX's own headers have it, of 1.20 or later. tests/ucx/check-abi
 * compares both. The sizes of structs go to stderr.
 */
#include <stddef.h>
#include <stdio.h>

#ifdef THEIRS
#include <ucp/api/ucp.h>
#else
#include "net/ucx/abi.h"
#endif

#define NUMBER(name) printf("%s %lld\n", #name, (long long)(name))
#define FIELD(type, field)                                              \
	printf("%s.%s %zu %zu\n", #type, #field, offsetof(type, field), \
	       sizeof(((type *)0)->field))

#define ROOM(type) fprintf(stderr, "%zu %s\n", sizeof(type), #type)

int main(void)
{
	NUMBER(sizeof(ucs_status_t));
	NUMBER(UCS_OK);
	NUMBER(UCS_INPROGRESS);
	NUMBER(UCS_ERR_NO_RESOURCE);
	NUMBER(UCS_ERR_IO_ERROR);
	NUMBER(UCS_ERR_NO_MEMORY);
	NUMBER(UCS_ERR_INVALID_PARAM);
	NUMBER(UCS_ERR_UNREACHABLE);
	NUMBER(UCS_ERR_INVALID_ADDR);
	NUMBER(UCS_ERR_NOT_IMPLEMENTED);
	NUMBER(UCS_ERR_NO_DEVICE);
	NUMBER(UCS_ERR_BUSY);
	NUMBER(UCS_ERR_CANCELED);
	NUMBER(UCS_ERR_TIMED_OUT);
	NUMBER(UCS_ERR_UNSUPPORTED);
	NUMBER(UCS_ERR_REJECTED);
	NUMBER(UCS_ERR_NOT_CONNECTED);
	NUMBER(UCS_ERR_CONNECTION_RESET);
	NUMBER(UCS_ERR_ENDPOINT_TIMEOUT);
	NUMBER(UCS_ERR_LAST);
	NUMBER(UCP_PARAM_FIELD_FEATURES);
	NUMBER(UCP_PARAM_FIELD_MT_WORKERS_SHARED);
	NUMBER(UCP_FEATURE_RMA);
	NUMBER(UCP_FEATURE_WAKEUP);
	NUMBER(UCP_FEATURE_AM);
	FIELD(ucp_params_t, field_mask);
	FIELD(ucp_params_t, features);
	FIELD(ucp_params_t, mt_workers_shared);
	NUMBER(UCP_WORKER_PARAM_FIELD_THREAD_MODE);
	NUMBER(UCS_THREAD_MODE_SERIALIZED);
	FIELD(ucp_worker_params_t, thread_mode);
	NUMBER(UCP_EP_PARAM_FIELD_REMOTE_ADDRESS);
	NUMBER(UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE);
	NUMBER(UCP_EP_PARAM_FIELD_ERR_HANDLER);
	NUMBER(UCP_ERR_HANDLING_MODE_PEER);
	FIELD(ucp_ep_params_t, address);
	FIELD(ucp_ep_params_t, err_mode);
	FIELD(ucp_ep_params_t, err_handler.cb);
	FIELD(ucp_ep_params_t, err_handler.arg);
	NUMBER(UCP_EP_ATTR_FIELD_TRANSPORTS);
	NUMBER(sizeof(ucp_transport_entry_t));
	FIELD(ucp_transport_entry_t, transport_name);
	FIELD(ucp_transport_entry_t, device_name);
	FIELD(ucp_ep_attr_t, transports.entries);
	FIELD(ucp_ep_attr_t, transports.num_entries);
	FIELD(ucp_ep_attr_t, transports.entry_size);
	NUMBER(UCP_MEM_MAP_PARAM_FIELD_ADDRESS);
	NUMBER(UCP_MEM_MAP_PARAM_FIELD_LENGTH);
	NUMBER(UCP_MEM_MAP_PARAM_FIELD_FLAGS);
	NUMBER(UCP_MEM_MAP_PARAM_FIELD_PROT);
	NUMBER(UCP_MEM_MAP_NONBLOCK);
	NUMBER(UCP_MEM_MAP_PROT_LOCAL_READ);
	NUMBER(UCP_MEM_MAP_PROT_LOCAL_WRITE);
	NUMBER(UCP_MEM_MAP_PROT_REMOTE_READ);
	NUMBER(UCP_MEM_MAP_PROT_REMOTE_WRITE);
	FIELD(ucp_mem_map_params_t, address);
	FIELD(ucp_mem_map_params_t, length);
	FIELD(ucp_mem_map_params_t, flags);
	FIELD(ucp_mem_map_params_t, prot);
	NUMBER(UCP_MEM_ADVISE_PARAM_FIELD_ADDRESS);
	NUMBER(UCP_MEM_ADVISE_PARAM_FIELD_LENGTH);
	NUMBER(UCP_MEM_ADVISE_PARAM_FIELD_ADVICE);
	NUMBER(UCP_MADV_WILLNEED);
	FIELD(ucp_mem_advise_params_t, address);
	FIELD(ucp_mem_advise_params_t, length);
	FIELD(ucp_mem_advise_params_t, advice);
	NUMBER(UCP_MEM_ATTR_FIELD_ADDRESS);
	NUMBER(UCP_MEM_ATTR_FIELD_LENGTH);
	FIELD(ucp_mem_attr_t, address);
	FIELD(ucp_mem_attr_t, length);
	NUMBER(UCP_OP_ATTR_FIELD_CALLBACK);
	NUMBER(UCP_OP_ATTR_FIELD_USER_DATA);
	NUMBER(UCP_OP_ATTR_FIELD_FLAGS);
	NUMBER(UCP_OP_ATTR_FIELD_MEMH);
	NUMBER(UCP_EP_CLOSE_FLAG_FORCE);
	NUMBER(UCP_AM_SEND_FLAG_EAGER);
	FIELD(ucp_request_param_t, op_attr_mask);
	FIELD(ucp_request_param_t, flags);
	FIELD(ucp_request_param_t, cb.send);
	FIELD(ucp_request_param_t, user_data);
	FIELD(ucp_request_param_t, memh);
	NUMBER(UCP_AM_RECV_ATTR_FLAG_RNDV);
	NUMBER(UCP_AM_HANDLER_PARAM_FIELD_ID);
	NUMBER(UCP_AM_HANDLER_PARAM_FIELD_FLAGS);
	NUMBER(UCP_AM_HANDLER_PARAM_FIELD_CB);
	NUMBER(UCP_AM_HANDLER_PARAM_FIELD_ARG);
	NUMBER(UCP_AM_FLAG_WHOLE_MSG);
	FIELD(ucp_am_recv_param_t, recv_attr);
	FIELD(ucp_am_handler_param_t, id);
	FIELD(ucp_am_handler_param_t, flags);
	FIELD(ucp_am_handler_param_t, cb);
	FIELD(ucp_am_handler_param_t, arg);
	/* UCP may copy a struct: what it reads must be there */
	ROOM(ucp_params_t);
	ROOM(ucp_worker_params_t);
	ROOM(ucp_ep_params_t);
	ROOM(ucp_ep_attr_t);
	ROOM(ucp_mem_map_params_t);
	ROOM(ucp_mem_advise_params_t);
	ROOM(ucp_mem_attr_t);
	ROOM(ucp_request_param_t);
	ROOM(ucp_am_handler_param_t);
	return 0;
}
