package soft

import (
	"cmp"
	"strconv"

	"github.com/adverb-rdma/adverb/internal/hca"
	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/settings"
	"github.com/adverb-rdma/adverb/internal/watch"
	"github.com/adverb-rdma/adverb/verbs"
)

// envList has the devices that speak iWARP listed.
const envList = "ADVERB_IWARP"

// environment has the settings of devices by variables of the environment. The variables that show packets are
// read where the packets are shown.
type environment struct {
	qps     hca.QPEnvironment
	shards  int // 0: nothing is said
	v1      roceV1
	shm     bool
	watched bool
	crc     bool
	spins   bool
}

// readEnvironment reads all variables, whatever kind of device is opened: a value that means nothing is nothing that
// only the other kind should tell of. The error is the first.
func readEnvironment() (*environment, error) {
	var e environment
	var errs []error
	note := func(err error) { errs = append(errs, err) }
	var err error
	e.qps, err = hca.ReadQPEnvironment()
	note(err)
	e.shards, err = settings.Value("ADVERB_SHARDS", parseShards)
	note(err)
	e.v1, err = settings.Value(envRoCEv1, parseRoCEv1)
	note(err)
	_, err = settings.Value(mem.EnvDebug, mem.ParseDebug) // which regions go by
	note(err)
	for _, s := range []struct {
		name  string
		on    *bool
		usual bool
	}{
		{"ADVERB_SHM", &e.shm, true},
		{watch.EnvOff, &e.watched, true},
		{envList, new(bool), false},
		{"ADVERB_IWARP_CRC", &e.crc, false},
		{"ADVERB_SPIN", &e.spins, true},
	} {
		*s.on, err = settings.Switch(s.name, s.usual)
		note(err)
	}
	return &e, cmp.Or(errs...)
}

// listen makes the program answer those who ask for its open objects and its counters, unless ADVERB_WATCH=0, until
// hide is called.
func (e *environment) listen() (hide func()) {
	if !e.watched {
		return func() {}
	}
	return watch.Listen()
}

// maxShards bounds ADVERB_SHARDS.
const maxShards = 16

// parseShards reads how many shards a device has.
func parseShards(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > maxShards {
		return 0, verbs.Errorf(verbs.ErrInvalid, "%q is not a number of shards: say 1 to %d", s, maxShards)
	}
	return n, nil
}
