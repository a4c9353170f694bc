package supervisor

import "errors"

// canTrace says that threads can be stopped and make calls. Nobody has tried it on this processor.
const canTrace = false

type registers struct{}

func (r *registers) read(int) error           { return errors.ErrUnsupported }
func (r *registers) write(int) error          { return errors.ErrUnsupported }
func (r *registers) prepare(uint64, []uint64) {}
func (r *registers) result() uint64           { return 0 }
func (r *registers) again()                   {}

func (t *tracer) restart(int) {}
