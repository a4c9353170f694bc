//go:build linux && (amd64 || arm64)

package ibv

import (
	"errors"
	"fmt"
	"sync"

	"github.com/ebitengine/purego"
)

// Library is the name by which the dynamic linker finds libibverbs.
const Library = "libibverbs.so.1"

// ErrNoLibrary says that libibverbs is not there, or cannot be loaded.
var ErrNoLibrary = errors.New("libibverbs cannot be loaded")

// Lib is a loaded library.
type Lib struct {
	getDeviceList, freeDeviceList, getDeviceGUID  function
	openDevice, closeDevice, queryDevice          function
	queryGIDEx, queryPKey                         function
	allocPD, deallocPD                            function
	regMR, deregMR, reregMR                       function
	createCompChannel, destroyCompChannel         function
	createCQ, destroyCQ, resizeCQ                 function
	getCQEvent, ackCQEvents                       function
	createQP, modifyQP, queryQP, destroyQP        function
	qpToQPEx                                      function
	createSRQ, modifySRQ, querySRQ, destroySRQ    function
	createAH, destroyAH, attachMcast, detachMcast function
	regDmabufMR                                   function // since 34
	getAsyncEvent, ackAsyncEvent                  function
}

// symbols are the names in the library. All are in each version from 33 on, but for regDmabufMR.
func (l *Lib) symbols() map[string]*function {
	return map[string]*function{
		"ibv_get_device_list": &l.getDeviceList, "ibv_free_device_list": &l.freeDeviceList, "ibv_get_device_guid": &l.getDeviceGUID,
		"ibv_open_device": &l.openDevice, "ibv_close_device": &l.closeDevice, "ibv_query_device": &l.queryDevice,
		"_ibv_query_gid_ex": &l.queryGIDEx, "ibv_query_pkey": &l.queryPKey,
		"ibv_alloc_pd": &l.allocPD, "ibv_dealloc_pd": &l.deallocPD,
		"ibv_reg_mr_iova2": &l.regMR, "ibv_dereg_mr": &l.deregMR, "ibv_rereg_mr": &l.reregMR, "ibv_reg_dmabuf_mr": &l.regDmabufMR,
		"ibv_create_comp_channel": &l.createCompChannel, "ibv_destroy_comp_channel": &l.destroyCompChannel,
		"ibv_create_cq": &l.createCQ, "ibv_destroy_cq": &l.destroyCQ, "ibv_resize_cq": &l.resizeCQ,
		"ibv_get_cq_event": &l.getCQEvent, "ibv_ack_cq_events": &l.ackCQEvents,
		"ibv_create_qp": &l.createQP, "ibv_modify_qp": &l.modifyQP, "ibv_query_qp": &l.queryQP, "ibv_destroy_qp": &l.destroyQP,
		"ibv_qp_to_qp_ex": &l.qpToQPEx,
		"ibv_create_srq":  &l.createSRQ, "ibv_modify_srq": &l.modifySRQ, "ibv_query_srq": &l.querySRQ, "ibv_destroy_srq": &l.destroySRQ,
		"ibv_create_ah": &l.createAH, "ibv_destroy_ah": &l.destroyAH,
		"ibv_attach_mcast": &l.attachMcast, "ibv_detach_mcast": &l.detachMcast,
		"ibv_get_async_event": &l.getAsyncEvent, "ibv_ack_async_event": &l.ackAsyncEvent,
	}
}

// Load loads a library by its file, or by the name that the dynamic linker looks for.
func Load(file string) (*Lib, error) {
	h, err := purego.Dlopen(file, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoLibrary, err)
	}
	if err := findErrno(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoLibrary, err)
	}
	l := &Lib{}
	for name, f := range l.symbols() {
		f.name = name
		if f.at, err = purego.Dlsym(h, name); err != nil && f != &l.regDmabufMR {
			return nil, fmt.Errorf("%w: %s is older than rdma-core 33: it lacks %s", ErrNoLibrary, file, name)
		}
	}
	return l, nil
}

var findErrno = sync.OnceValue(func() (err error) {
	errnoLocation, err = purego.Dlsym(purego.RTLD_DEFAULT, "__errno_location")
	return err
})
