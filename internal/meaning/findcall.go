package meaning

import (
	"slices"
	"strings"
)

// callForms are the ways in which programs name a call, by the call. The first that fits counts.
var callForms = []struct {
	re   *pattern
	call string
}{
	{&pattern{text: `ibv_(?:cmd_)?modify_qp|modif(?:y|ying) (?:the )?(?:\w+ )?qp\b|\bqp(?: \w+)? to (?:init|rtr|rts)\b|transition(?:ing)?(?: \w+)? to (?:rtr|rts|init)|change (?:qp )?state to (?:rtr|rts|init)|to (?:init|rtr|rts) state|\b(?:rst2init|init2rtr|rtr2rts)_qp\b|connect the hca'?s through the link|connect to remote qp`}, "ibv_modify_qp"},
	{&pattern{text: `rdma_create_qp`}, "rdma_create_qp"},
	{&pattern{text: `ibv_(?:cmd_)?create_qp(?:_ex)?|\bcreate_qp\b|(?:create|creating|allocate) (?:the )?(?:\w+ )?qp(?:air)?\b|qp creation|mlx5dv_create_qp|devx_obj_create\((?:qp|dct|dci)\)|requested qp size might be too big`}, "ibv_create_qp"},
	{&pattern{text: `ibv_(?:cmd_)?create_cq(?:_ex)?|\bcreate_cq\b|(?:create|allocate) (?:a )?(?:\w+ )?cq\b|create (?:a )?completion queue`}, "ibv_create_cq"},
	{&pattern{text: `ibv_create_srq|create srq`}, "ibv_create_srq"},
	{&pattern{text: `ibv_(?:cmd_|exp_)?reg_(?:dmabuf_)?mr\w*|fi_mr_reg|\bcreate_mkey\b|regist\w+ (?:the )?(?:\w+ )?(?:mr|memory|region)\b|(?:allocate|create) mr\b|memory registration|\breg_mr failed`}, "ibv_reg_mr"},
	{&pattern{text: `ibv_alloc_pd|allocate pd`}, "ibv_alloc_pd"},
	{&pattern{text: `ibv_open_device|open (?:ib |rdma )?device|get context for`}, "ibv_open_device"},
	{&pattern{text: `ibv_query_gid\w*|query gid|gid \d+ not available|read sgid of index|get local gid for`}, "ibv_query_gid"},
	{&pattern{text: `ibv_create_ah|(?:create|allocate) (?:hw )?ah\b|address handle`}, "ibv_create_ah"},
	{&pattern{text: `ibv_post_send|post (?:a |the )?(?:send|rdma (?:write|read))`}, "ibv_post_send"},
	{&pattern{text: `ibv_post_(?:srq_)?recv|post (?:a )?rec(?:ei|v)`}, "ibv_post_recv"},
	{&pattern{text: `ibv_get_device_list|get ib devices? list`}, "ibv_get_device_list"},
	{&pattern{text: `rdma_create_event_channel|create rdma cm event channel`}, "rdma_create_event_channel"},
	{&pattern{text: `rdma_create_ep`}, "rdma_create_ep"},
	{&pattern{text: `\bfi_getinfo|ofi (?:addrinfo|getinfo)\(\)`}, "fi_getinfo"},
	{&pattern{text: `ib_cache_gid_add`}, "ib_cache_gid_add"},
	{&pattern{text: `rdma_create_id`}, "rdma_create_id"},
	{&pattern{text: `rdma_getaddrinfo|cmatose: failure getting addr`}, "rdma_getaddrinfo"},
	{&pattern{text: `rdma_resolve_addr|address resolution failed|resolve rdma cm address`}, "rdma_resolve_addr"},
	{&pattern{text: `rdma_resolve_route|resolve route failed`}, "rdma_resolve_route"},
	{&pattern{text: `rdma_bind_addr|bind (?:the )?(?:rdma )?addr|bind address failed`}, "rdma_bind_addr"},
	{&pattern{text: `rdma_listen|listen request failed|failure trying to listen`}, "rdma_listen"},
	{&pattern{text: `rdma_connect|\bnvme.*failed to connect|rdma connection establishment failed|cmatose: failure connecting`}, "rdma_connect"},
	{&pattern{text: `rdma_accept|cmatose: failure accepting`}, "rdma_accept"},
	{&pattern{text: `rdma_join_multicast`}, "rdma_join_multicast"},
	{&pattern{text: `rdma_disconnect`}, "rdma_disconnect"},
	{&pattern{text: `ibv_query_(?:port|device|pkey)|\bget port info|query (?:port|port_num|device)\b`}, "ibv_query_port"},
	{&pattern{text: `\bumad|bad mad status|mad_rpc|ibwarn: `}, "umad_send"},
	{&pattern{text: `^connect(?:$|\(\)|:| failed\b| error\b| e[a-z]+$| -?\d+$)|(?:couldn'?t|could not|unable to|failed to) connect`}, "connect"},
}

var (
	// The state that a QP was to change to. The first form that a text has counts.
	stateForms = []*pattern{
		&pattern{text: `\b(?:next state |rst2|init2|rtr2)(init|rtr|rts)(?:_qp)?\b`}, &pattern{text: `to[ _](?:state )?(?:ibv_qps_)?(init|rtr|rts)\b`},
		&pattern{text: `\b\w+, ?(init|rtr|rts)\)`}, &pattern{text: `\b(init|rtr|rts)\b`},
	}

	errnoForms = &pattern{text: `\b(?:errno|err(?:or)?(?:[_ ]?code)?|code|ret(?:urned)?|rc|with|status)[:=\s]*\(?(-?\d{1,3})\b|[\[(]-?(\d{1,3})[\])]|(?:^|\s)-(\d{1,3})$|\s(\d{1,3})$`}
	errnoAlone = &pattern{text: `\b(?:errno|err(?:or)?|ret(?:urned)?|rc)[:=\s]*\(?(-?\d{1,3})\b|[\[(](-\d{1,3})[\])]|(?:^|\s)(-\d{1,3})$`}
)

// errnoText is an errno with its name and its text in lower case.
type errnoText struct {
	number     int
	name, text string
}

var errnoTexts once[[]errnoText]

func lowerErrnos() (list []errnoText) {
	for _, e := range errnoNames {
		list = append(list, errnoText{e.number, lower(e.name), lower(e.text)})
	}
	return list
}

// errnoIn returns the errno that a text names, by strerror's text, by its name or by its number, and where. forms are those
// of numbers.
func errnoIn(t *text, forms *pattern) (n, at int, by string, ok bool) {
	texts := errnoTexts.get(lowerErrnos)
	for _, e := range texts {
		if i := strings.Index(t.lower, e.text); i >= 0 {
			return e.number, i, t.raw[i : i+len(e.text)], true
		}
	}
	for _, w := range t.words {
		if w.text[0] != 'e' {
			continue
		}
		for _, e := range texts {
			if e.name == w.text {
				return e.number, w.at, t.raw[w.at : w.at+len(w.text)], true
			}
		}
	}
	for _, s := range firmwareStatus {
		if m := s.re.FindStringIndex(t.lower); m != nil {
			return s.number, m[0], t.raw[m[0]:m[1]], true
		}
	}
	for _, m := range forms.FindAllStringSubmatchIndex(t.lower) {
		for g := 2; g < len(m); g += 2 {
			if m[g] < 0 {
				continue
			}
			n, _ := parse(strings.TrimPrefix(t.lower[m[g]:m[g+1]], "-"))
			if n == 1 && g == len(m)-2 && len(t.words) > 3 { // "port 1" ends many lines
				continue
			}
			if name, _ := errnoName(n); name != "" && !(n == 1 && strings.HasPrefix(t.lower[m[g]:], "-")) { // -1 says only that it failed
				return n, m[0], strings.TrimSpace(t.raw[m[0]:m[1]]), true
			}
		}
	}
	return 0, 0, "", false
}

// entriesOfCall returns the entries of a call, the likeliest first: those of a state of the QP before those of any.
func entriesOfCall(call, state string) (list []Entry) {
	for _, e := range Of(KindErrno) {
		if e.Call == call && (e.State == state || e.State == "") {
			list = append(list, e)
		}
	}
	slices.SortStableFunc(list, func(a, b Entry) int { return strings.Compare(b.State, a.State) })
	return list
}

// findingOfCall makes a finding of an errno of a call. Where the call has no entry of its own for the errno, it is that of
// no call.
func findingOfCall(r rank, at int, by, call, state string, n int) []Finding {
	for _, c := range []string{call, ""} {
		for _, e := range entriesOfCall(c, state) {
			if e.Number == n {
				return []Finding{{Entry: e, By: by, rank: r, at: at}}
			}
		}
	}
	return nil
}

// stateIn returns the state that a QP was to change to, or "".
func stateIn(t *text) string {
	for _, re := range stateForms {
		if m := re.FindStringSubmatch(t.lower); m != nil {
			return strings.ToUpper(m[1])
		}
	}
	return ""
}

// namedCall is a call that a text names, and the state that a QP was to change to.
type namedCall struct {
	call, state, by string
	at              int
}

// callIn returns the call that a text names.
func callIn(t *text) (c namedCall, ok bool) {
	if !t.asked {
		t.asked = true
		t.call, t.hasCall = t.searchCall()
	}
	return t.call, t.hasCall
}

func (t *text) searchCall() (c namedCall, ok bool) {
	for i := range callForms {
		m := callForms[i].re.FindStringIndex(t.lower)
		if m == nil {
			continue
		}
		c = namedCall{call: callForms[i].call, by: t.raw[m[0]:m[1]], at: m[0]}
		if c.call == "ibv_modify_qp" {
			c.state = stateIn(t)
		}
		return c, true
	}
	return c, false
}

// findCall finds a call that failed, and its errno. Without an errno the call's likeliest ones are found.
func findCall(t *text) (found []Finding) {
	c, ok := callIn(t)
	if !ok {
		return nil
	}
	if n, _, by, ok := errnoIn(t, errnoForms); ok {
		if f := findingOfCall(rankCode, c.at, c.by+" … "+by, c.call, c.state, n); f != nil {
			return f
		}
	}
	for i, e := range entriesOfCall(c.call, c.state) {
		if c.state == "" || e.State == c.state {
			found = append(found, Finding{Entry: e, By: c.by, Guess: true, rank: rankContext, at: c.at + i})
		}
	}
	return found
}

// readError is in texts about the error of a completion that libfabric hands on.
var readError = &pattern{text: `cq_readerr`}

// findErrnoAlone finds an errno that no call stands beside: its meaning without a call, and those by each call.
func findErrnoAlone(t *text) []Finding {
	n, at, by, ok := errnoIn(t, errnoAlone)
	if !ok || bareNumber.MatchString(t.lower) {
		return nil
	}
	call := ""
	if readError.MatchString(t.lower) {
		call = "fi_cq_readerr"
	}
	found := findingOfCall(rankContext, at, by, call, "", n)
	for _, e := range Of(KindErrno) {
		if e.Number == n && e.Call != "" {
			found = append(found, Finding{Entry: e, By: by, rank: rankBare, at: at})
		}
	}
	return found
}
