package verbs

import (
	"log/slog"
	"sync/atomic"
)

// ProviderLogger is for implementers of providers: a ProviderDevice implements it if it logs.
type ProviderLogger interface {
	// SetLogger makes the device log to l, and be silent again with nil. It may be called at any time.
	SetLogger(l *slog.Logger)
}

// SetLogger makes the device log its events to l: with [slog.LevelError] that the device has failed, with
// LevelWarn that a QP or the port has, which request of a peer was refused and why, and that packets were
// dropped; with LevelInfo changes of the port, with LevelDebug the states of QPs. The error state is among
// these where this end has asked for it, as the connection manager does at the end of each connection. Of
// iWARP there are with LevelWarn the TCP connections that end by an error, and Terminate messages both
// ways, and with LevelDebug the connections that are made and that end in order. A nil l ends it: devices
// are silent unless they are asked.
//
// A record of one kind appears ten times at once, and then once a second; the attribute "omitted" counts
// those that were left out. The handler of l runs on a goroutine of its own and holds nothing up. The error
// is ErrUnsupported for a device that does not log.
func (d *Device) SetLogger(l *slog.Logger) error {
	const verb = "set logger of"
	if err := d.check(verb); err != nil {
		return err
	}
	p, ok := d.p.(ProviderLogger)
	if !ok {
		return wrap(verb, d.name, Errorf(ErrUnsupported, "the device does not log"))
	}
	p.SetLogger(l)
	return nil
}

// defaultLogger is that of devices which Open opens, or nil.
var defaultLogger atomic.Pointer[slog.Logger]

// SetLogger is [Device.SetLogger] for all devices that [Open] opens from now on, and for those that it has
// opened: the devices that a connection manager opens by itself are among them. Devices that do not log
// are passed over.
func SetLogger(l *slog.Logger) {
	defaultLogger.Store(l)
	for _, d := range OpenDevices() {
		d.useDefaultLogger()
	}
}

func (d *Device) useDefaultLogger() {
	if p, ok := d.p.(ProviderLogger); ok {
		p.SetLogger(defaultLogger.Load())
	}
}
