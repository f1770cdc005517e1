package main

import (
	"math"
	"strconv"
)

// What docs/reference/registry.md promises about leases, tokens, proofs of stopping and claims, written a
// second time and from the callers' side: a state is what they can know of a namespace's pods.
//
// An operation without an answer took effect at any time after its call, or never. The checker may
// put it last of all, which is the same as never; anywhere else it takes effect if it may. What its
// answer would have told (token, end of the lease, version) is a span until another answer tells.

const (
	refused  = 400
	missing  = 404
	conflict = 409

	mostPods = 4
	forever  = math.MaxInt64
)

// A span holds a number that is known not to lie outside of it.
type span struct{ lo, hi int64 }

func exactly(value int64) span         { return span{value, value} }
func (s span) has(value int64) bool    { return s.lo <= value && value <= s.hi }
func (s span) surely(value int64) bool { return s == exactly(value) }
func (s span) greater() span           { return span{s.lo + 1, forever} }

// A pod as the registry tells of it; recorded: its one artifact is known.
type pod struct {
	exists, recorded, ended                    bool
	node, holder                               string
	stopped, successor, successorNode, claimed string
	version, token, until                      span
}

type state [mostPods]pod

// An answer's record of a pod; times in ms since 1970.
type record struct {
	Version       int64  `json:"version"`
	Node          string `json:"node"`
	Token         int64  `json:"token"`
	Holder        string `json:"holder"`
	Until         int64  `json:"until_ms"`
	Stopped       string `json:"stopped"`
	Successor     string `json:"successor"`
	SuccessorNode string `json:"successor_node"`
	Artifact      string `json:"artifact"`
	Ended         bool   `json:"ended"`
}

// A call; pods are numbers. Call and Return order it (ns of one clock), CallMs and ReturnMs are by
// the clock that ends leases. Status 0: no answer.
type call struct {
	Client    int     `json:"client"`
	Kind      string  `json:"kind"`
	Pod       int     `json:"pod"`
	Node      string  `json:"node"`
	Runs      bool    `json:"runs"`
	LastsMs   int64   `json:"lasts_ms"`
	Token     int64   `json:"token"`
	Proof     string  `json:"proof"`
	Successor int     `json:"successor"`
	Artifact  string  `json:"artifact"`
	Decided   *int64  `json:"version"`
	Call      int64   `json:"call"`
	Return    int64   `json:"return"`
	CallMs    int64   `json:"call_ms"`
	ReturnMs  int64   `json:"return_ms"`
	Status    int     `json:"status"`
	Answer    *record `json:"answer"`
}

// A ruling on a call: whether it may be granted, how it may be refused, and what is then.
type ruling struct {
	may      bool
	refusals []int
	next     state
}

// need: without a condition the call is refused. may: it can hold; surely: it does.
func (r *ruling) need(may, surely bool, status int) {
	r.may = r.may && may
	if !surely {
		r.refusals = append(r.refusals, status)
	}
}

func (r *ruling) demand(holds bool, status int) { r.need(holds, holds, status) }

func step(now state, c *call) (bool, state) {
	r := ruling{may: true, next: now}
	rules[c.Kind](&r, now, c)
	switch {
	case c.Status == 0:
		if r.may {
			return true, r.next
		}
		return true, now
	case c.Status >= 300:
		for _, one := range r.refusals {
			if one == c.Status {
				return true, now
			}
		}
		return false, now
	case !r.may:
		return false, now
	}
	if c.Kind == "record" {
		return (c.Status == 201) == !now[c.Pod].recorded, r.next
	}
	return r.next[c.Pod].told(c.Answer), r.next
}

// told compares a pod with an answer, and takes over what that one knows better.
func (p *pod) told(a *record) bool {
	same := a != nil && p.node == a.Node && p.holder == a.Holder && p.stopped == a.Stopped &&
		p.successor == a.Successor && p.successorNode == a.SuccessorNode &&
		p.claimed == a.Artifact && p.ended == a.Ended &&
		p.version.has(a.Version) && p.token.has(a.Token) && p.until.has(a.Until)
	if same {
		p.version, p.token, p.until = exactly(a.Version), exactly(a.Token), exactly(a.Until)
	}
	return same
}

var rules = map[string]func(*ruling, state, *call){
	"get": func(r *ruling, now state, c *call) { r.demand(now[c.Pod].exists, missing) },

	"lease": func(r *ruling, now state, c *call) {
		p := now[c.Pod]
		r.writable(p, c)
		r.demand(!c.Runs || p.node == "" || p.node == c.Node, conflict)
		r.demand(p.stopped == "" || p.successor != "", conflict)
		own := p.holder == c.Node
		r.need(own || p.until.lo <= c.ReturnMs, own || p.until.hi <= c.CallMs, conflict)
		if c.Runs {
			p.node = c.Node
		}
		p.token, p.holder, p.until = p.token.greater(), c.Node, c.ends()
		r.change(c.Pod, p)
	},

	"renew": func(r *ruling, now state, c *call) {
		p := now[c.Pod]
		r.owned(p, c)
		ends := c.ends()
		p.token = exactly(c.Token)
		p.until = span{max(p.until.lo, ends.lo), max(p.until.hi, ends.hi)}
		r.change(c.Pod, p)
	},

	"give_back": func(r *ruling, now state, c *call) {
		p := now[c.Pod]
		r.owned(p, c)
		p.token = exactly(c.Token)
		if p.until.surely(0) {
			r.next[c.Pod] = p
			return
		}
		p.until = exactly(0)
		r.change(c.Pod, p)
	},

	"record": func(r *ruling, now state, c *call) {
		p := now[c.Pod]
		r.demand(p.exists, conflict)
		r.owned(p, c)
		p.token, p.recorded = exactly(c.Token), true
		r.next[c.Pod] = p
	},

	"stop": func(r *ruling, now state, c *call) {
		p := now[c.Pod]
		r.demand(c.Proof != "agent" || p.node == c.Node, refused)
		own := p.successor == podName(c.Pod)
		if p.stopped != "" && !own {
			return
		}
		if own {
			p.successor, p.successorNode, p.claimed = "", "", ""
		}
		p.stopped, p.until = c.Proof, exactly(0)
		r.change(c.Pod, p)
	},

	"claim": claim,

	"release": func(r *ruling, now state, c *call) {
		p, after := now[c.Pod], now[c.Successor]
		r.next[c.Pod].exists, r.next[c.Successor].exists = true, true
		if p.successor != podName(c.Successor) {
			r.demand(after.ended && p.successor == "", conflict)
			return
		}
		// An agent's word for its own pod: it has ended, and never continued.
		r.demand(p.successorNode == c.Node, refused)
		r.demand(c.Successor != c.Pod && after.successor == "", conflict)
		p.successor, p.successorNode, p.claimed = "", "", ""
		r.change(c.Pod, p)
		if after.stopped == "" {
			after.stopped, after.until, after.version = "agent", exactly(0), after.version.greater()
		}
		if !after.ended {
			after.ended = true
			r.change(c.Successor, after)
		}
	},
}

func claim(r *ruling, now state, c *call) {
	p, after := now[c.Pod], now[c.Successor]
	r.next[c.Pod].exists, r.next[c.Successor].exists = true, true
	if p.successor == podName(c.Successor) && p.successorNode == c.Node && p.claimed == c.Artifact {
		return
	}
	itself := c.Successor == c.Pod
	r.demand(p.successor == "" && !p.ended && p.stopped != "", conflict)
	r.demand(after.node == "" || after.node == c.Node, conflict)
	if c.Decided != nil {
		r.need(p.version.has(*c.Decided), p.version.surely(*c.Decided), conflict)
		p.version = exactly(*c.Decided)
	}
	if !itself {
		r.demand(after.stopped == "" && after.successor == "" && !after.ended, conflict)
		r.demand(p.recorded, missing)
		for number, other := range now {
			r.demand(number == c.Pod || other.successor != podName(c.Successor), conflict)
		}
		if after.node == "" {
			after.node = c.Node
			r.change(c.Successor, after)
		}
	} else {
		p.node = c.Node
	}
	p.successor, p.successorNode, p.claimed = podName(c.Successor), c.Node, c.Artifact
	p.token, p.holder, p.until = p.token.greater(), "", exactly(0)
	r.change(c.Pod, p)
}

// writable: nobody else goes on with the pod's state.
func (r *ruling) writable(p pod, c *call) {
	self := p.successor == "" || p.successor == podName(c.Pod)
	here := p.successor == "" || p.successorNode == c.Node
	r.demand(!p.ended && self && here, conflict)
}

// owned: the caller has the newest token.
func (r *ruling) owned(p pod, c *call) {
	r.writable(p, c)
	own := p.holder == c.Node
	r.need(own && p.token.has(c.Token), own && p.token.surely(c.Token), conflict)
}

func (r *ruling) change(number int, p pod) {
	p.exists, p.version = true, p.version.greater()
	r.next[number] = p
}

// ends is when a lease ends that was granted during the call.
func (c *call) ends() span {
	if c.Status == 0 {
		return span{c.CallMs + c.LastsMs, forever}
	}
	return span{c.CallMs + c.LastsMs, c.ReturnMs + c.LastsMs}
}

// podName is the UID of a pod, which is unique in its namespace.
func podName(number int) string { return "p" + strconv.Itoa(number) }
