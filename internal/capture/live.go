package capture

import "errors"

// ErrQuiet is the error of [Live.Next] when no frame has come for some time: a tenth of a second or so.
var ErrQuiet = errors.New("no frame has come")

// AnyInterface is the name that stands for all interfaces of the host.
const AnyInterface = "any"

// tapsLimit says what somebody can do who may not capture.
const tapsLimit = "run this as root or with CAP_NET_RAW, or read what another program captures: tcpdump -U -w - | adverb diagnose -"
