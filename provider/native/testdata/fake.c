/* A libibverbs without a device behind it, for tests. Work requests are carried out in the call that posts them, between QPs
 * of the process: a lossless network without delay. Port 1 is RoCE, port 2 InfiniBand. It does what a driver of a card may
 * do and a careful program must be ready for: it purges the CQs of a QP that is destroyed, gives
 * the numbers and addresses of destroyed objects to the next ones, and answers every call, in fake_fail's time by failing.
 * One lock serializes everything. */
#define _GNU_SOURCE
#include "abi.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SUCCESS, LOC_LEN, LOC_QP_OP, LOC_EEC, LOC_PROT, FLUSH, MW_BIND, BAD_RESP, LOC_ACCESS, REM_INV, REM_ACCESS, REM_OP, RETRY, RNR };
enum { RESET, INIT, RTR, RTS, SQD, SQE, ERR };
enum { RC = 2, UC, UD, XRC_SEND = 9, XRC_RECV };
enum { WRITE, WRITE_IMM, SEND, SEND_IMM, READ, CMP_SWAP, FETCH_ADD, LOCAL_INV, BIND, SEND_INV, PLACE = 14, ATOMIC_WRITE };
enum { A_LOCAL_WRITE = 1, A_WRITE = 2, A_READ = 4, A_ATOMIC = 8, A_BIND = 16, A_ZERO = 32, A_FLUSH_GLOBAL = 256 };
enum { EV_CQ_ERR, EV_QP_FATAL, EV_QP_REQ_ERR, EV_QP_ACCESS, EV_COMM_EST, EV_SQ_DRAINED, EV_DEVICE_FATAL = 8, EV_SRQ_LIMIT = 15, EV_LAST_WQE = 16 };
enum { CAP_XRC = 1 << 20, OPS = 0x1bff, OP_PLACE = 1 << 11, OP_ATOMIC_WRITE = 1 << 12 };
enum { F_SIGNALED = 2, F_SOLICITED = 4, F_INLINE = 8 };
enum { VECTORS = 4, MAX_SGE = 16, MAX_WR = 1024, MAX_INLINE = 512, KEYS = 1 << 14, QPS = 1 << 14, GROUPS = 8, SRQS = 1 << 10, FIRST_SRQN = 0x100, FIRST_QPN = 0x40, MCAST_QPN = 0xffffff };

static pthread_mutex_t big = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t acked = PTHREAD_COND_INITIALIZER;
#define LOCK pthread_mutex_lock(&big)
#define UNLOCK pthread_mutex_unlock(&big)

/* The tests' own calls: the next call of a name fails, or the n-th call from now on, and how many objects there are. */
static char fail_call[64];
static int fail_errno, fail_nth, live;

void fake_fail(const char *call, int e) {
	LOCK;
	strncpy(fail_call, call, sizeof fail_call - 1);
	fail_errno = e;
	UNLOCK;
}

/* Returns how many calls were left to the one that was to fail, and forgets it: 0 if it has failed. */
int fake_fail_nth(int n, int e) {
	LOCK;
	int left = fail_nth;
	fail_nth = n;
	fail_errno = e;
	UNLOCK;
	return left;
}

/* The driver lacks operations, as that of an older library does. */
static uint64_t lacking;

void fake_lacks(uint64_t ops) {
	LOCK;
	lacking = ops;
	UNLOCK;
}

int fake_live(void) {
	LOCK;
	int n = live;
	UNLOCK;
	return n;
}

/* What drivers and their libraries do in a process: threads of their own with memory and errno, a child that they wait for, a
 * signal that they handle for a moment. Returns 0, or what went wrong. */
static volatile sig_atomic_t signals;

static void note_signal(int n) { (void)n, signals++; }

static void *busy(void *arg) {
	for (int i = 0; i < 1000; i++) {
		char *p = malloc(1 + i);
		p[0] = p[i] = i;
		errno = i;
		if (errno != i) return arg;
		free(p);
	}
	return NULL;
}

int fake_disturb(void) {
	pthread_t threads[4];
	for (int i = 0; i < 4; i++)
		if (pthread_create(&threads[i], NULL, busy, threads)) return 1;
	pid_t child = fork();
	if (!child) _exit(7);
	int status = 0, failed = 0;
	while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
	}
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 7) failed = 2;
	struct sigaction act = {.sa_handler = note_signal, .sa_flags = SA_ONSTACK | SA_RESTART}, old;
	int before = signals;
	sigaction(SIGUSR2, &act, &old);
	raise(SIGUSR2);
	sigaction(SIGUSR2, &old, NULL);
	if (signals == before) failed = 3;
	for (int i = 0; i < 4; i++) {
		void *r;
		pthread_join(threads[i], &r);
		if (r) failed = 4;
	}
	return failed;
}

/* The devices are gone: of their calls those that ask the kernel fail, and events are at an end. */
static int gone;

static int failing(const char *call) {
	if (gone && strncmp(call, "ibv_post", 8) && strcmp(call, "ibv_wr_complete") && strcmp(call, "ibv_close_device") &&
		strcmp(call, "ibv_destroy_comp_channel")) return EIO;
	if (fail_nth && !--fail_nth) return fail_errno;
	if (strcmp(fail_call, call)) return 0;
	fail_call[0] = 0;
	return fail_errno;
}

/* What a call says where there is no event. The calls come when they come, so fake_fail_nth does not count them. */
static int no_event(const char *call) {
	int nth = fail_nth;
	fail_nth = 0;
	int e = failing(call);
	fail_nth = nth;
	return e ? e : EAGAIN;
}

#define FAIL_NULL(call) { int fe = failing(call); if (fe) { UNLOCK; errno = fe; return NULL; } }
#define FAIL_INT(call) { int fe = failing(call); if (fe) { UNLOCK; return fe; } }

struct ibv_cq *ibv_create_cq(struct ibv_context *, int, void *, struct ibv_comp_channel *, int);
int ibv_query_device(struct ibv_context *, struct ibv_device_attr *);

struct node { struct node *next; void *cq; struct ibv_async_event ev; };
struct channel { struct ibv_comp_channel c; struct node *events; int reader, late; };
struct ctx { struct verbs_context v; struct node *events; int quick; struct channel *channel; struct ctx *next; };
static struct ctx *contexts;
struct cqe { struct ibv_wc wc; struct qp *qp; struct srq *srq; int sends, recvs; uint64_t ticks, ns; };
struct cq {
	union {
		struct ibv_cq cq;
		struct ibv_cq_ex ex; /* which begins as the other does */
	};
	struct cqe at; /* of a poll that reads */
	struct channel *ch;
	struct cqe *ring;
	int head, count, cap, armed, solicited_only, users, reported, overrun, async;
	uint64_t quick[64];
	int qhead, qcount;
};
struct swr { struct ibv_send_wr wr; struct ibv_sge sge[MAX_SGE]; uint8_t *inl; uint32_t window; uint64_t len; uint8_t placement, level; };
struct rwr { struct ibv_recv_wr wr; struct ibv_sge sge[MAX_SGE]; };
struct rqueue { struct rwr *ring; int head, count, cap, sges, busy; };
struct domain { int users; dev_t dev; ino_t ino; struct domain *next; }; /* users are its handles */
struct xrcd { struct ibv_xrcd xrcd; struct domain *domain; int users; };
struct srq { struct ibv_srq srq; struct rqueue q; int limit, users, async; struct xrcd *xrcd; struct cq *cq; uint32_t num; };
struct mr { struct ibv_mr mr; uint64_t iova; unsigned access; int windows; char *mapped; };
struct mw { struct ibv_mw mw; struct mr *to; struct qp *by; uint64_t addr, len; unsigned access; uint32_t key; };
struct ah { struct ibv_ah ah; struct ibv_ah_attr attr; };
struct qp {
	union {
		struct ibv_qp qp;
		struct ibv_qp_ex ex; /* which begins as the other does */
	};
	uint64_t ops;
	pthread_t poster; /* who has called wr_start */
	struct ibv_send_wr made; /* between wr_start and wr_complete */
	struct swr details;
	int nmade;
	/* An XRC target is known by handles, which have nothing but real. For a message it has the SRQ that this names. */
	struct qp *real, *handle;
	struct xrcd *xrcd;
	struct domain *domain;
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr init;
	struct cq *scq, *rcq;
	struct srq *srq;
	struct swr *sq;
	int shead, scount, sbusy, unsignaled, est, last_wqe, async, running;
	struct rqueue rq;
	struct { uint8_t gid[16]; uint16_t lid; } groups[GROUPS];
	int ngroups;
};

static struct { struct mr *mr; struct mw *mw; uint32_t key; } keys[KEYS];
static struct qp *qps[QPS];
static struct srq *xsrqs[SRQS];
static struct domain *domains;
static uint32_t qkey_violations[3]; /* by port */

static struct ibv_device devices[2] = {
	{ .node_type = 1, .name = "fake0", .dev_name = "uverbs0" },
	{ .node_type = 1, .name = "quick0", .dev_name = "uverbs1" },
};

static void ring_bell(int fd) { ssize_t n = write(fd, &(uint64_t){1}, 8); (void)n; }

/* The device's clock has 32 bits and 250 MHz. */
enum { CLOCK_KHZ = 250000 };
#define CLOCK_MASK 0xffffffffu

static uint64_t clock_ns(clockid_t id) {
	struct timespec t;
	clock_gettime(id, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static uint64_t ticks(void) { return clock_ns(CLOCK_MONOTONIC) / 4 & CLOCK_MASK; }

/* ---- events ---- */

static void push(struct node **list, struct node *n) {
	while (*list) list = &(*list)->next;
	*list = n;
}

static void async_event(struct ibv_context *c, uint32_t type, void *object) {
	struct ctx *x = (void *)((char *)c - offsetof(struct ctx, v.context));
	struct node *n = calloc(1, sizeof *n);
	n->ev.event_type = type;
	n->ev.element.cq = object;
	push(&x->events, n);
	ring_bell(c->async_fd);
}

/* An event of a QP: all handles of a target are told. */
static void qp_event(struct qp *q, uint32_t type) {
	if (q->qp.qp_type != XRC_RECV) async_event(q->qp.context, type, q);
	for (struct qp *h = q->qp.qp_type == XRC_RECV ? q->handle : NULL; h; h = h->handle) async_event(h->qp.context, type, h);
}

static void forget(struct node **list, void *object) {
	while (*list) {
		struct node *n = *list;
		if (n->cq == object || n->ev.element.cq == object) {
			*list = n->next;
			free(n);
		} else list = &n->next;
	}
}

static void forget_async(struct ibv_context *c, void *object) {
	forget(&((struct ctx *)((char *)c - offsetof(struct ctx, v.context)))->events, object);
}

static int take(struct node **list, int fd, struct node *out) {
	struct node *n = *list;
	if (!n) {
		uint64_t v;
		ssize_t got = read(fd, &v, 8);
		(void)got;
		return 0;
	}
	*list = n->next;
	*out = *n;
	free(n);
	return 1;
}

/* ---- completions ---- */

static void raise_cq(struct cq *c, int solicited) {
	if (!c->armed || (c->solicited_only && !solicited)) return;
	c->armed = 0;
	if (!c->ch) return;
	struct node *n = calloc(1, sizeof *n);
	n->cq = c;
	push(&c->ch->events, n);
	ring_bell(c->ch->c.fd);
}

static void complete(struct cq *c, struct qp *q, struct ibv_wc wc, int sends, int recvs, int solicited) {
	if (c->count == c->cap) {
		if (!c->overrun) async_event(c->cq.context, EV_CQ_ERR, c);
		c->overrun = 1;
		return;
	}
	wc.qp_num = q->qp.qp_num;
	if (wc.status) wc.opcode = 77, wc.byte_len = 0xdead; /* which do not count then */
	c->ring[(c->head + c->count++) % c->cap] = (struct cqe){wc, q, q->qp.qp_type == XRC_RECV ? q->srq : NULL, sends, recvs, ticks(), clock_ns(CLOCK_REALTIME)};
	raise_cq(c, solicited || wc.status);
}

static void purge(struct cq *c, struct qp *q) {
	int n = 0;
	for (int i = 0; i < c->count; i++) {
		struct cqe e = c->ring[(c->head + i) % c->cap];
		if (e.qp != q) c->ring[(c->head + n++) % c->cap] = e;
	}
	c->count = n;
}

static void purge_srq(struct cq *c, struct srq *s) {
	int n = 0;
	for (int i = 0; i < c->count; i++) {
		struct cqe e = c->ring[(c->head + i) % c->cap];
		if (e.srq != s) c->ring[(c->head + n++) % c->cap] = e;
	}
	c->count = n;
}

static uint32_t wc_op(uint32_t op) {
	static const uint32_t ops[] = {1, 1, 0, 0, 2, 3, 4, 6, 5, 0, [PLACE] = 8, [ATOMIC_WRITE] = 9};
	return ops[op];
}

static void send_done(struct qp *q, int status, uint32_t len) {
	struct swr *w = &q->sq[q->shead];
	q->shead = (q->shead + 1) % q->init.cap.max_send_wr;
	q->scount--;
	q->unsignaled++;
	if (status || (w->wr.send_flags & F_SIGNALED) || q->init.sq_sig_all) {
		struct ibv_wc wc = {.wr_id = w->wr.wr_id, .status = status, .opcode = wc_op(w->wr.opcode), .byte_len = len};
		complete(q->scq, q, wc, q->unsignaled, 0, 0);
		q->unsignaled = 0;
	}
	free(w->inl);
	w->inl = NULL;
}

static int reliable(struct qp *q) { return q->qp.qp_type != UC && q->qp.qp_type != UD; }

static struct ibv_pd *pd_of(struct qp *q) { return q->qp.qp_type == XRC_RECV ? q->srq->srq.pd : q->qp.pd; }

static struct rqueue *receives(struct qp *q) { return q->srq ? &q->srq->q : &q->rq; }

static struct rwr *next_receive(struct qp *q) {
	struct rqueue *r = receives(q);
	if (!r->count) return NULL;
	struct rwr *w = &r->ring[r->head];
	r->head = (r->head + 1) % r->cap;
	r->count--;
	if (q->srq) {
		r->busy--;
		if (q->srq->limit && r->count < q->srq->limit) {
			q->srq->limit = 0;
			async_event(q->qp.context, EV_SRQ_LIMIT, q->srq);
		}
	}
	return w;
}

static void recv_done(struct qp *q, struct ibv_wc wc, int solicited) { complete(q->rcq, q, wc, 0, !q->srq, solicited); }

static void flush_sends(struct qp *q) { while (q->scount) send_done(q, FLUSH, 0); }

static void flush_recvs(struct qp *q) {
	while (!q->srq && q->rq.count) {
		struct rwr *w = next_receive(q);
		recv_done(q, (struct ibv_wc){.wr_id = w->wr.wr_id, .status = FLUSH, .opcode = 128}, 0);
	}
	if (q->srq && q->qp.qp_type != XRC_RECV && !q->last_wqe) q->last_wqe = 1, qp_event(q, EV_LAST_WQE);
}

static void to_err(struct qp *q) {
	q->a.qp_state = q->qp.state = ERR;
	flush_sends(q);
	flush_recvs(q);
}

/* ---- memory ---- */

static uint8_t *bytes_of(uint32_t lkey, struct ibv_pd *pd, uint64_t addr, uint64_t len, unsigned access) {
	struct mr *m = keys[lkey >> 8 & (KEYS - 1)].mr;
	if (!m || m->mr.lkey != lkey || m->mr.pd != pd || (m->access & access) != access) return NULL;
	uint64_t off = addr - m->iova;
	if (off > m->mr.length || len > m->mr.length - off) return NULL;
	return (uint8_t *)m->mr.addr + off;
}

/* A peer's key: of a region or a window. */
static uint8_t *remote_bytes(uint32_t rkey, struct qp *q, uint64_t addr, uint64_t len, unsigned access) {
	int i = rkey >> 8 & (KEYS - 1);
	struct mw *w = keys[i].mw;
	if (!(q->a.qp_access_flags & access)) return NULL;
	if (!w) return bytes_of(rkey, pd_of(q), addr, len, access);
	if (w->key != rkey || !w->to || w->mw.pd != pd_of(q) || (w->by && w->by != q) || !(w->access & access)) return NULL;
	uint64_t off = addr - (w->access & A_ZERO ? 0 : w->addr);
	if (off > w->len || len > w->len - off) return NULL;
	return (uint8_t *)w->to->mr.addr + (w->addr - w->to->iova) + off;
}

static int new_key(void) {
	for (int i = 1; i < KEYS; i++)
		if (!keys[i].mr && !keys[i].mw) return i;
	return 0;
}

/* Some drivers take 0 for 2^31 bytes. */
static uint64_t sge_length(struct ibv_sge *s) { return s->length ? s->length : 1u << 31; }

static uint64_t length_of(struct ibv_sge *s, int n) {
	uint64_t len = 0;
	for (int i = 0; i < n; i++) len += sge_length(&s[i]);
	return len;
}

/* Copies between a list of SGEs and linear memory. Returns 0 if an SGE is wrong. */
static int copy_sges(struct qp *q, struct ibv_sge *s, int n, uint8_t *at, uint64_t len, int scatter) {
	for (int pass = 0; pass < 2; pass++) {
		uint64_t left = len;
		uint8_t *p = at;
		for (int i = 0; i < n && left; i++) {
			uint64_t part = sge_length(&s[i]) < left ? sge_length(&s[i]) : left;
			uint8_t *b = bytes_of(s[i].lkey, pd_of(q), s[i].addr, part, scatter ? A_LOCAL_WRITE : 0);
			if (!b) return 0;
			if (pass) memmove(scatter ? b : p, scatter ? p : b, part);
			p += part, left -= part;
		}
	}
	return 1;
}

/* ---- the network ---- */

static const uint8_t gids[2][4][16] = {
	{{0xfe, 0x80, [8] = 2, 0, 0, 0xff, 0xfe, 0, 0, 1}, {0xfe, 0x80, [8] = 2, 0, 0, 0xff, 0xfe, 0, 0, 1},
		{[10] = 0xff, 0xff, 10, 0, 0, 1}, {[10] = 0xff, 0xff, 10, 0, 0, 1}},
	{{0xfe, 0x80, [8] = 2, 0, 0, 0xff, 0xfe, 0, 0, 2}},
};
enum { LID = 0x11, ROCE = 1, IB = 2, V4 = 2 };

static int leads_here(struct ibv_ah_attr *h) {
	if (h->port_num == IB) return h->dlid == LID;
	for (int i = 0; i < 4; i++)
		if (!memcmp(h->grh.dgid.raw, gids[0][i], 16)) return h->grh.sgid_index < 4;
	return 0;
}

static struct srq *find_srq(uint32_t n, struct domain *d) {
	struct srq *s = n - FIRST_SRQN < SRQS ? xsrqs[n - FIRST_SRQN] : NULL;
	return s && s->xrcd->domain == d ? s : NULL;
}

static struct qp *find(uint32_t qpn) { return qpn < QPS ? qps[qpn] : NULL; }

static int receives_now(struct qp *p) { return p->qp.state == RTR || p->qp.state == RTS || p->qp.state == SQD || p->qp.state == SQE; }

static struct qp *peer_of(struct qp *q) {
	struct qp *p = find(q->a.dest_qp_num);
	if (!p || p->qp.qp_type != (q->qp.qp_type == XRC_SEND ? XRC_RECV : q->qp.qp_type) || !receives_now(p) || p->a.dest_qp_num != q->qp.qp_num) return NULL;
	return leads_here(&q->a.ah_attr) && p->a.port_num == q->a.port_num ? p : NULL;
}

static void established(struct qp *p) {
	if (p->qp.state == RTR && !p->est) p->est = 1, qp_event(p, EV_COMM_EST);
}

static void refuse(struct qp *p, int event) {
	if (!reliable(p)) return;
	qp_event(p, event);
	to_err(p);
}

static uint8_t payload_static[1 << 16];

/* What the work request sends, in memory that stays until the next call. NULL: an SGE is wrong. */
static uint8_t *payload(struct qp *q, struct swr *w, uint64_t len, uint8_t **owned) {
	*owned = NULL;
	if (w->inl) return w->inl;
	uint8_t *p = len <= sizeof payload_static ? payload_static : (*owned = malloc(len));
	if (copy_sges(q, w->sge, w->wr.num_sge, p, len, 0)) return p;
	free(*owned);
	*owned = NULL;
	return NULL;
}

enum { WAIT = -1 };

/* A message for a receive of p's. Returns the sender's status, or WAIT. */
static int deliver(struct qp *q, struct qp *p, struct swr *w, uint8_t *data, uint64_t len, int written) {
	uint32_t op = w->wr.opcode;
	if (!receives(p)->count) {
		if (!reliable(q)) return SUCCESS;
		return q->a.rnr_retry == 7 ? WAIT : RNR;
	}
	struct ibv_wc wc = {.opcode = written ? 129 : 128, .byte_len = len, .src_qp = q->qp.qp_num};
	if (op == SEND_IMM || op == WRITE_IMM) wc.wc_flags |= 2, wc.imm_data = w->wr.imm_data;
	if (op == SEND_INV) {
		int i = w->wr.invalidate_rkey >> 8 & (KEYS - 1);
		struct mw *m = keys[i].mw;
		if (!m || m->key != w->wr.invalidate_rkey || !m->to || m->by != p) {
			recv_done(p, (struct ibv_wc){.wr_id = next_receive(p)->wr.wr_id, .status = LOC_QP_OP}, 0);
			refuse(p, EV_QP_ACCESS);
			return REM_ACCESS;
		}
		m->to->windows--, m->to = NULL;
		wc.wc_flags |= 8, wc.invalidated_rkey = w->wr.invalidate_rkey;
	}
	struct rwr *r = next_receive(p);
	wc.wr_id = r->wr.wr_id;
	int solicited = w->wr.send_flags & F_SOLICITED;
	if (written) {
		recv_done(p, wc, solicited);
		return SUCCESS;
	}
	if (q->a.ah_attr.port_num != IB) wc.wc_flags |= 1; /* as drivers do on RoCE, for connected QPs too */
	int fault = 0;
	if (len > length_of(r->sge, r->wr.num_sge)) fault = LOC_LEN;
	else if (!copy_sges(p, r->sge, r->wr.num_sge, data, len, 1)) fault = LOC_PROT;
	if (!fault) {
		recv_done(p, wc, solicited);
		return SUCCESS;
	}
	wc.status = fault, wc.wc_flags = 0;
	recv_done(p, wc, 0);
	to_err(p);
	return !reliable(p) ? SUCCESS : fault == LOC_LEN ? REM_INV : REM_OP;
}

static void datagram(struct qp *q, struct qp *p, struct swr *w, uint8_t *data, uint64_t len, struct ibv_ah_attr *h) {
	uint32_t qkey = w->wr.wr.ud.remote_qkey;
	if (qkey >> 31) qkey = q->a.qkey;
	if (p->qp.qp_type != UD || !receives_now(p) || p->a.port_num != q->a.port_num) return;
	if (qkey != p->a.qkey) qkey_violations[p->a.port_num]++;
	if (qkey != p->a.qkey || !receives(p)->count) return;
	struct rwr *r = next_receive(p);
	struct ibv_wc wc = {.wr_id = r->wr.wr_id, .opcode = 128, .byte_len = len + 40, .src_qp = q->qp.qp_num, .pkey_index = 0};
	if (w->wr.opcode == SEND_IMM) wc.wc_flags |= 2, wc.imm_data = w->wr.imm_data;
	uint8_t *all = calloc(1, len + 40);
	memcpy(all + 40, data, len);
	if (h->port_num == IB) {
		wc.slid = LID, wc.sl = h->sl;
	}
	if (h->is_global) {
		const uint8_t *from = gids[h->port_num - 1][h->grh.sgid_index & 3];
		wc.wc_flags |= 1;
		if (h->port_num == ROCE && h->grh.sgid_index >= V4) {
			uint8_t *ip = all + 20;
			ip[0] = 0x45, ip[1] = h->grh.traffic_class, ip[8] = h->grh.hop_limit, ip[9] = 17;
			memcpy(ip + 12, from + 12, 4);
			memcpy(ip + 16, h->grh.dgid.raw + 12, 4);
		} else {
			all[0] = 0x60 | h->grh.traffic_class >> 4, all[1] = h->grh.traffic_class << 4, all[7] = h->grh.hop_limit;
			memcpy(all + 8, from, 16);
			memcpy(all + 24, h->grh.dgid.raw, 16);
		}
	}
	if (len + 40 > length_of(r->sge, r->wr.num_sge)) wc.status = LOC_LEN;
	else if (!copy_sges(p, r->sge, r->wr.num_sge, all, len + 40, 1)) wc.status = LOC_PROT;
	free(all);
	recv_done(p, wc, w->wr.send_flags & F_SOLICITED);
	if (wc.status) to_err(p);
}

static int bind_window(struct qp *q, struct mw *m, struct ibv_mw_bind_info *b, uint32_t rkey) {
	struct mr *to = (struct mr *)b->mr;
	if (b->length) {
		uint64_t off = b->addr - to->iova;
		if (!(to->access & A_BIND) || off > to->mr.length || b->length > to->mr.length - off) return MW_BIND;
		if (b->mw_access_flags & (A_WRITE | A_ATOMIC) && !(to->access & A_LOCAL_WRITE)) return MW_BIND;
	}
	if (m->mw.type == 2 && (m->to || !b->length || rkey >> 8 != m->key >> 8)) return MW_BIND;
	if (m->to) m->to->windows--;
	m->to = b->length ? to : NULL;
	if (m->to) to->windows++;
	m->by = m->mw.type == 2 ? q : NULL;
	m->addr = b->addr, m->len = b->length, m->access = b->mw_access_flags;
	m->key = rkey;
	return SUCCESS;
}

/* One work request. Returns its status, or WAIT. */
static int execute(struct qp *q, struct swr *w, uint64_t *bytes) {
	uint32_t op = w->wr.opcode;
	uint64_t len = length_of(w->sge, w->wr.num_sge);
	struct qp *p = NULL;
	uint8_t *owned, *data, *to;
	int s = SUCCESS;
	*bytes = 0;
	if (op == BIND && w->window != ((struct mw *)w->wr.bind_mw.mw)->key) return MW_BIND; /* as rxe does: the caller keeps mw->rkey */
	if (op == BIND) return bind_window(q, (struct mw *)w->wr.bind_mw.mw, &w->wr.bind_mw.bind_info, w->wr.bind_mw.rkey);
	if (op == LOCAL_INV) {
		struct mw *m = keys[w->wr.invalidate_rkey >> 8 & (KEYS - 1)].mw;
		if (!m || m->mw.type != 2 || m->key != w->wr.invalidate_rkey || !m->to || m->mw.pd != q->qp.pd) return MW_BIND;
		m->to->windows--, m->to = NULL;
		return SUCCESS;
	}
	if (q->qp.qp_type != UD && !(p = peer_of(q)) && reliable(q)) {
		/* the data's own faults come first, and then nobody answers */
		if (op != READ && op != CMP_SWAP && op != FETCH_ADD && op != PLACE) {
			if (!payload(q, w, len, &owned)) return LOC_PROT;
			free(owned);
		}
		return RETRY;
	}
	if (p) established(p);
	if (q->qp.qp_type == XRC_SEND) {
		struct srq *named = find_srq(w->wr.qp_type.xrc.remote_srqn, p->domain);
		if (!named) {
			refuse(p, EV_QP_REQ_ERR);
			return REM_INV;
		}
		p->srq = named, p->rcq = named->cq;
	}
	if (op == PLACE) {
		unsigned access = w->placement * A_FLUSH_GLOBAL;
		int i = w->wr.wr.rdma.rkey >> 8 & (KEYS - 1);
		if ((p->a.qp_access_flags & access) != access) s = REM_INV;
		else if (w->level == 1 && (!keys[i].mr || !bytes_of(w->wr.wr.rdma.rkey, p->qp.pd, keys[i].mr->iova, 0, access))) s = REM_ACCESS;
		else if (w->level != 1 && !bytes_of(w->wr.wr.rdma.rkey, p->qp.pd, w->wr.wr.rdma.remote_addr, w->len, access)) s = REM_ACCESS;
		if (s) refuse(p, EV_QP_ACCESS);
		return s;
	}
	if (op == ATOMIC_WRITE) {
		if (!(to = remote_bytes(w->wr.wr.rdma.rkey, p, w->wr.wr.rdma.remote_addr, 8, A_WRITE))) {
			refuse(p, EV_QP_ACCESS);
			return REM_ACCESS;
		}
		uint64_t word;
		memcpy(&word, w->inl, 8);
		__atomic_store_n((uint64_t *)to, word, __ATOMIC_SEQ_CST);
		return SUCCESS;
	}
	if (op == READ || op == CMP_SWAP || op == FETCH_ADD) {
		int atomic = op != READ;
		uint64_t at = w->wr.wr.rdma.remote_addr;
		to = remote_bytes(atomic ? w->wr.wr.atomic.rkey : w->wr.wr.rdma.rkey, p, at, len, atomic ? A_ATOMIC : A_READ);
		if (!to && (len || atomic)) {
			refuse(p, EV_QP_ACCESS);
			return REM_ACCESS;
		}
		uint64_t old;
		if (atomic) {
			memcpy(&old, to, 8);
			if (op == FETCH_ADD) __atomic_fetch_add((uint64_t *)to, w->wr.wr.atomic.compare_add, __ATOMIC_SEQ_CST);
			else if (old == w->wr.wr.atomic.compare_add) memcpy(to, &w->wr.wr.atomic.swap, 8);
			to = (uint8_t *)&old;
		}
		*bytes = len;
		return copy_sges(q, w->sge, w->wr.num_sge, to, len, 1) ? SUCCESS : LOC_PROT;
	}
	if (w->inl) len = w->wr.num_sge ? w->sge[0].length : 0;
	if (!(data = payload(q, w, len, &owned))) return LOC_PROT;
	if (q->qp.qp_type == UD) {
		struct ibv_ah_attr *h = &((struct ah *)w->wr.wr.ud.ah)->attr;
		if (w->wr.wr.ud.remote_qpn == MCAST_QPN) {
			for (int i = 0; i < QPS; i++)
				for (int g = 0; qps[i] && g < qps[i]->ngroups; g++)
					if (!memcmp(qps[i]->groups[g].gid, h->grh.dgid.raw, 16) && (h->port_num != IB || qps[i]->groups[g].lid == h->dlid))
						datagram(q, qps[i], w, data, len, h);
		} else if (find(w->wr.wr.ud.remote_qpn) && leads_here(h)) {
			datagram(q, find(w->wr.wr.ud.remote_qpn), w, data, len, h);
		}
	} else if (p && (op == WRITE || op == WRITE_IMM)) {
		if (op == WRITE_IMM && reliable(q) && !receives(p)->count) {
			s = q->a.rnr_retry == 7 ? WAIT : RNR;
		} else if (!(to = remote_bytes(w->wr.wr.rdma.rkey, p, w->wr.wr.rdma.remote_addr, len, A_WRITE)) && len) {
			refuse(p, EV_QP_ACCESS);
			s = reliable(q) ? REM_ACCESS : SUCCESS;
		} else {
			if (len) memmove(to, data, len);
			if (op == WRITE_IMM) s = deliver(q, p, w, NULL, len, 1);
		}
	} else if (p) {
		s = deliver(q, p, w, data, len, 0);
	}
	free(owned);
	return s;
}

static void run(struct qp *q) {
	if (q->running || gone) return;
	q->running = 1;
	while (q->scount && q->qp.state == RTS) {
		uint64_t bytes;
		int s = execute(q, &q->sq[q->shead], &bytes);
		if (s == WAIT || !q->scount) break; /* a QP that is its own peer may have failed */
		send_done(q, s, bytes);
		if (!s) continue;
		if (reliable(q)) to_err(q);
		else {
			q->a.qp_state = q->qp.state = SQE;
			flush_sends(q);
		}
	}
	q->running = 0;
}

/* Receives have come for p, or for the QPs of an SRQ: who waits goes on. */
static void wake(struct qp *p, struct srq *s) {
	for (int i = 0; i < QPS; i++) {
		struct qp *q = qps[i], *to = q ? find(q->a.dest_qp_num) : NULL;
		if (q && q->scount && to && (to == p || (s && (s->xrcd ? to->domain == s->xrcd->domain : to->srq == s)))) run(q);
	}
}

/* ---- the hot calls ---- */

/* Makes a work request out of what ibv_post_send takes, or ibv_wr_complete, which adds details. */
static int add_send(struct qp *q, struct ibv_send_wr *wr, struct swr *details, const char *call) {
	int e = failing(call);
	if (!e && details && q->sbusy == (int)q->init.cap.max_send_wr) e = ENOSPC;
	if (!e && q->sbusy == (int)q->init.cap.max_send_wr) e = ENOMEM;
	if (!e && (q->qp.state < RTS || wr->num_sge > (int)q->init.cap.max_send_sge)) e = EINVAL;
	if (!e && !details && wr->opcode >= PLACE) e = EINVAL;
	uint64_t len = wr->num_sge ? length_of(wr->sg_list, wr->num_sge) : 0;
	if (!e && (wr->send_flags & F_INLINE) && len > q->init.cap.max_inline_data) e = EINVAL;
	if (!e && q->qp.qp_type == UD && len > 4096) e = EINVAL;
	if (e) return e;
	struct swr *w = &q->sq[(q->shead + q->scount) % q->init.cap.max_send_wr];
	if (details) *w = *details;
	w->wr = *wr;
	if (wr->opcode == BIND) w->window = wr->bind_mw.mw->rkey;
	memcpy(w->sge, wr->sg_list, wr->num_sge * sizeof *wr->sg_list);
	if (!details) w->inl = NULL;
	if (wr->send_flags & F_INLINE) { /* the addresses are those of the process */
		w->inl = malloc(len + 1);
		uint8_t *p = w->inl;
		for (int i = 0; i < wr->num_sge; i++) memcpy(p, (void *)wr->sg_list[i].addr, wr->sg_list[i].length), p += wr->sg_list[i].length;
		if (wr->num_sge) w->sge[0].length = len, w->wr.num_sge = 1;
	}
	q->scount++, q->sbusy++;
	if (q->qp.state == ERR || q->qp.state == SQE) flush_sends(q);
	else run(q);
	return 0;
}

static int post_send(struct ibv_qp *ibq, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
	int e = 0;
	LOCK;
	for (; wr && !e; wr = wr->next)
		if ((e = add_send((struct qp *)ibq, wr, NULL, "ibv_post_send"))) *bad = wr;
	UNLOCK;
	return e;
}

/* The functions of the QP. The lock is held from wr_start to wr_complete, on one thread. */
static void wr_start(struct ibv_qp_ex *x) {
	struct qp *q = (struct qp *)x;
	LOCK;
	q->poster = pthread_self();
	q->nmade = 0;
}

static void made(struct qp *q, uint32_t op, uint32_t rkey, uint64_t addr, struct swr details) {
	q->made = (struct ibv_send_wr){.wr_id = q->ex.wr_id, .opcode = op, .send_flags = q->ex.wr_flags};
	q->made.wr.rdma.remote_addr = addr, q->made.wr.rdma.rkey = rkey;
	q->details = details;
	q->nmade++;
}

static void wr_flush(struct ibv_qp_ex *x, uint32_t rkey, uint64_t addr, size_t len, uint8_t placement, uint8_t level) {
	made((struct qp *)x, PLACE, rkey, addr, (struct swr){.len = len, .placement = placement, .level = level});
}

static void wr_atomic_write(struct ibv_qp_ex *x, uint32_t rkey, uint64_t addr, const void *word) {
	made((struct qp *)x, ATOMIC_WRITE, rkey, addr, (struct swr){.inl = memcpy(malloc(8), word, 8)});
}

static int wr_complete(struct ibv_qp_ex *x) {
	struct qp *q = (struct qp *)x;
	if (!pthread_equal(q->poster, pthread_self()) || q->nmade != 1) abort();
	int e = add_send(q, &q->made, &q->details, "ibv_wr_complete");
	if (e) free(q->details.inl);
	UNLOCK;
	return e;
}

static int add_receives(struct rqueue *r, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad, const char *call) {
	for (; wr; wr = wr->next) {
		int e = failing(call);
		if (!e && r->busy == r->cap) e = ENOMEM;
		if (!e && wr->num_sge > r->sges) e = EINVAL;
		if (e) {
			*bad = wr;
			return e;
		}
		struct rwr *w = &r->ring[(r->head + r->count++) % r->cap];
		r->busy++;
		w->wr = *wr;
		memcpy(w->sge, wr->sg_list, wr->num_sge * sizeof *wr->sg_list);
	}
	return 0;
}

static int post_recv(struct ibv_qp *ibq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
	struct qp *q = (struct qp *)ibq;
	LOCK;
	int e = q->qp.state == RESET ? (*bad = wr, EINVAL) : add_receives(&q->rq, wr, bad, "ibv_post_recv");
	if (q->qp.state == ERR) flush_recvs(q);
	else wake(q, NULL);
	UNLOCK;
	return e;
}

static int post_srq_recv(struct ibv_srq *ibs, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
	struct srq *s = (struct srq *)ibs;
	LOCK;
	int e = add_receives(&s->q, wr, bad, "ibv_post_srq_recv");
	wake(NULL, s);
	UNLOCK;
	return e;
}

static int take_cqe(struct cq *c) {
	if (!c->count) return 0;
	c->at = c->ring[c->head];
	c->at.qp->sbusy -= c->at.sends;
	c->at.qp->rq.busy -= c->at.recvs;
	c->head = (c->head + 1) % c->cap;
	c->count--;
	return 1;
}

static int poll_cq(struct ibv_cq *ibc, int n, struct ibv_wc *wc) {
	struct cq *c = (struct cq *)ibc;
	int i = 0;
	LOCK;
	for (; i < n && take_cqe(c); i++) wc[i] = c->at.wc;
	if (!i && c->overrun) i = -2;
	UNLOCK;
	return i;
}

/* The same by functions of the CQ. A poll holds the lock from start to end, so a caller that does not end it hangs the
 * test, and one that reads outside of it reads nothing. */
static int next_poll(struct ibv_cq_ex *x) {
	struct cq *c = (struct cq *)x;
	if (!take_cqe(c)) return c->overrun ? EIO : ENOENT;
	x->wr_id = c->at.wc.wr_id, x->status = c->at.wc.status;
	return 0;
}

static int start_poll(struct ibv_cq_ex *x, struct ibv_poll_cq_attr *a) {
	LOCK;
	int e = a->comp_mask ? EINVAL : next_poll(x);
	if (e) UNLOCK;
	return e;
}

static void end_poll(struct ibv_cq_ex *x) {
	struct cq *c = (struct cq *)x;
	c->at = (struct cqe){.ticks = 0};
	UNLOCK;
}

/* Values of less than 64 bits come with rubbish above, as registers have it. */
#define RUBBISH 0x5a5a5a5a00000000
#define READS(name, type, value) static type read_##name(struct ibv_cq_ex *x) { return (type)(((struct cq *)x)->at.value); }
READS(opcode, uint32_t, wc.opcode)
READS(vendor_err, uint32_t, wc.vendor_err)
READS(byte_len, uint32_t, wc.byte_len)
READS(imm_data, uint32_t, wc.imm_data)
READS(src_qp, uint32_t, wc.src_qp)
READS(wc_flags, unsigned, wc.wc_flags)
READS(slid, uint32_t, wc.slid)
READS(sl, uint64_t, wc.sl | RUBBISH)
READS(dlid_path_bits, uint64_t, wc.dlid_path_bits | RUBBISH)
READS(qp_num, uint64_t, wc.qp_num | RUBBISH)
READS(ticks, uint64_t, ticks)
READS(ns, uint64_t, ns)

static int req_notify(struct ibv_cq *ibc, int solicited_only) {
	struct cq *c = (struct cq *)ibc;
	LOCK;
	c->solicited_only = c->armed ? c->solicited_only && solicited_only : solicited_only;
	c->armed = 1;
	UNLOCK;
	return 0;
}

/* The same calls of quick0, which complete each work request and move nothing: for measurements. */
static int quick_send(struct ibv_qp *q, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
	(void)bad;
	struct cq *c = (struct cq *)q->send_cq;
	for (; wr; wr = wr->next) c->quick[(c->qhead + c->qcount++) & 63] = wr->wr_id;
	return 0;
}

static int quick_poll(struct ibv_cq *ibc, int n, struct ibv_wc *wc) {
	struct cq *c = (struct cq *)ibc;
	int i = 0;
	for (; i < n && c->qcount; i++, c->qhead++, c->qcount--) wc[i] = (struct ibv_wc){.wr_id = c->quick[c->qhead & 63], .opcode = 1, .qp_num = 1};
	return i;
}

/* ---- devices ---- */

struct ibv_device **ibv_get_device_list(int *n) {
	LOCK;
	FAIL_NULL("ibv_get_device_list");
	struct ibv_device **list = calloc(3, sizeof *list);
	list[0] = &devices[0], list[1] = &devices[1];
	*n = 2;
	UNLOCK;
	return list;
}

void ibv_free_device_list(struct ibv_device **list) { free(list); }

uint64_t ibv_get_device_guid(struct ibv_device *d) {
	uint64_t g;
	(void)d;
	memcpy(&g, &gids[0][0][8], 8);
	return g;
}

static int query_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *a, size_t size) {
	(void)c;
	LOCK;
	FAIL_INT("ibv_query_port");
	UNLOCK;
	if (port < ROCE || port > IB) return EINVAL;
	struct ibv_port_attr p = {.state = 4, .max_mtu = 5, .active_mtu = port == ROCE ? 3 : 4, .gid_tbl_len = port == ROCE ? 16 : 8,
		.port_cap_flags = 0x10000, .max_msg_sz = 1u << 31, .qkey_viol_cntr = qkey_violations[port], .pkey_tbl_len = 1, .lid = port == IB ? LID : 0, .sm_lid = port == IB ? 1 : 0,
		.max_vl_num = 1, .active_width = 2, .active_speed = 32, .phys_state = 5, .link_layer = port == IB ? 1 : 2};
	memcpy(a, &p, size < sizeof p ? size : sizeof p);
	return 0;
}

static struct ibv_mw *alloc_mw(struct ibv_pd *pd, int type) {
	LOCK;
	FAIL_NULL("ibv_alloc_mw");
	int i = new_key();
	if (!i) {
		UNLOCK;
		errno = ENOMEM;
		return NULL;
	}
	struct mw *m = calloc(1, sizeof *m);
	m->mw = (struct ibv_mw){pd->context, pd, i << 8, i, type};
	m->key = m->mw.rkey;
	keys[i].mw = m;
	live++;
	UNLOCK;
	return &m->mw;
}

static int dealloc_mw(struct ibv_mw *ibm) {
	struct mw *m = (struct mw *)ibm;
	LOCK;
	FAIL_INT("ibv_dealloc_mw");
	if (m->to) m->to->windows--;
	keys[m->mw.handle].mw = NULL;
	free(m);
	live--;
	UNLOCK;
	return 0;
}

static int bind_mw(struct ibv_qp *q, struct ibv_mw *m, struct ibv_mw_bind *b) {
	struct ibv_send_wr wr = {.wr_id = b->wr_id, .opcode = BIND, .send_flags = b->send_flags}, *bad;
	wr.bind_mw.mw = m;
	wr.bind_mw.rkey = (m->rkey & ~0xffu) | ((m->rkey + 1) & 0xff);
	wr.bind_mw.bind_info = b->bind_info;
	int e = post_send(q, &wr, &bad);
	if (!e) m->rkey = wr.bind_mw.rkey;
	return e;
}

static int query_rt_values(struct ibv_context *c, struct ibv_values_ex *v) {
	(void)c;
	LOCK;
	FAIL_INT("ibv_query_rt_values_ex");
	UNLOCK;
	v->raw_clock = (struct timespec){.tv_nsec = ticks()};
	return 0;
}

static struct ibv_qp *create_qp_ex(struct ibv_context *, struct ibv_qp_init_attr_ex *);
static struct ibv_qp *open_qp(struct ibv_context *, struct ibv_qp_open_attr *);
static int get_srq_num(struct ibv_srq *, uint32_t *);
static struct ibv_srq *create_srq_ex(struct ibv_context *, struct ibv_srq_init_attr_ex *);
static struct ibv_xrcd *open_xrcd(struct ibv_context *, struct ibv_xrcd_init_attr *);
static int close_xrcd(struct ibv_xrcd *);

static struct ibv_cq_ex *create_cq_ex(struct ibv_context *x, struct ibv_cq_init_attr_ex *a) {
	LOCK;
	FAIL_NULL("ibv_create_cq_ex");
	UNLOCK;
	if (a->comp_mask || (a->wc_flags & 0x7f) != 0x7f) return errno = EINVAL, NULL;
	struct cq *c = (struct cq *)ibv_create_cq(x, a->cqe, a->cq_context, a->channel, a->comp_vector);
	if (!c) return NULL;
	struct ibv_cq_ex *e = &c->ex;
	e->start_poll = start_poll, e->next_poll = next_poll, e->end_poll = end_poll;
	e->read_opcode = read_opcode, e->read_vendor_err = read_vendor_err, e->read_byte_len = read_byte_len;
	e->read_imm_data = read_imm_data, e->read_src_qp = read_src_qp, e->read_wc_flags = read_wc_flags, e->read_slid = read_slid;
	e->read_sl = (void *)read_sl, e->read_dlid_path_bits = (void *)read_dlid_path_bits, e->read_qp_num = (void *)read_qp_num;
	if (a->wc_flags & 1 << 7) e->read_completion_ts = read_ticks;
	if (a->wc_flags & 1 << 11) e->read_completion_wallclock_ns = read_ns;
	return e;
}

static int query_device_ex(struct ibv_context *c, const void *input, struct ibv_device_attr_ex *a, size_t size) {
	if (input || size != sizeof *a) return EINVAL;
	*a = (struct ibv_device_attr_ex){.completion_timestamp_mask = CLOCK_MASK, .hca_core_clock = CLOCK_KHZ, .xrc_odp_caps = 0,
		.odp_caps = {.general_caps = 1, .per_transport_caps = {.rc_odp_caps = 0x3f, .ud_odp_caps = 0x23}}};
	int e = ibv_query_device(c, &a->orig_attr);
	a->device_cap_flags_ex = a->orig_attr.device_cap_flags | 1ull << 34 | 7ull << 38;
	return e;
}

struct ibv_context *ibv_open_device(struct ibv_device *d) {
	LOCK;
	FAIL_NULL("ibv_open_device");
	struct ctx *x = calloc(1, sizeof *x);
	x->quick = d == &devices[1];
	x->v.query_port = query_port;
	x->v.sz = sizeof x->v;
	struct ibv_context *c = &x->v.context;
	c->device = d;
	c->cmd_fd = -1;
	c->async_fd = eventfd(0, EFD_CLOEXEC);
	c->num_comp_vectors = x->quick ? 1 : VECTORS;
	if (!x->quick) { /* which is like a driver that knows no more than the oldest calls */
		x->v.query_rt_values = query_rt_values;
		x->v.create_cq_ex = create_cq_ex;
		x->v.query_device_ex = query_device_ex;
		x->v.create_qp_ex = create_qp_ex, x->v.open_qp = open_qp;
		x->v.get_srq_num = get_srq_num, x->v.create_srq_ex = create_srq_ex;
		x->v.open_xrcd = open_xrcd, x->v.close_xrcd = close_xrcd;
	}
	x->next = contexts, contexts = x;
	c->abi_compat = (void *)UINTPTR_MAX;
	c->ops.alloc_mw = alloc_mw;
	c->ops.bind_mw = bind_mw;
	c->ops.dealloc_mw = dealloc_mw;
	c->ops.poll_cq = x->quick ? quick_poll : poll_cq;
	c->ops.req_notify_cq = req_notify;
	c->ops.post_srq_recv = post_srq_recv;
	c->ops.post_send = x->quick ? quick_send : post_send;
	c->ops.post_recv = post_recv;
	live++;
	UNLOCK;
	return c;
}

int ibv_close_device(struct ibv_context *c) {
	struct ctx *x = (void *)((char *)c - offsetof(struct ctx, v.context));
	LOCK;
	FAIL_INT("ibv_close_device");
	struct ctx **at = &contexts;
	while (*at != x) at = &(*at)->next;
	*at = x->next;
	for (int i = 0; i < QPS; i++) /* the kernel destroys what is left */
		if (qps[i] && qps[i]->qp.context == c) qps[i] = NULL;
	for (int i = 0; i < KEYS; i++)
		if ((keys[i].mr && keys[i].mr->mr.context == c) || (keys[i].mw && keys[i].mw->mw.context == c)) keys[i].mr = NULL, keys[i].mw = NULL;
	close(c->async_fd);
	while (x->events) {
		struct node *n = x->events;
		x->events = n->next;
		free(n);
	}
	free(x);
	live--;
	UNLOCK;
	return 0;
}

int ibv_query_device(struct ibv_context *c, struct ibv_device_attr *a) {
	(void)c;
	LOCK;
	FAIL_INT("ibv_query_device");
	UNLOCK;
	*a = (struct ibv_device_attr){.fw_ver = "fake", .max_mr_size = UINT64_MAX, .page_size_cap = 0xfffff000, .vendor_id = 0xfa4e,
		.max_qp = QPS / 2, .max_qp_wr = MAX_WR, .device_cap_flags = 1 << 1 | 1 << 2 | 1 << 12 | 1 << 13 | 1 << 17 | 1 << 24 | CAP_XRC, .max_sge = MAX_SGE,
		.max_sge_rd = MAX_SGE, .max_cq = 1 << 16, .max_cqe = 1 << 16, .max_mr = KEYS / 2, .max_pd = 1 << 16, .max_qp_rd_atom = 16, .max_res_rd_atom = 1 << 16,
		.max_qp_init_rd_atom = 16, .atomic_cap = 1, .max_mw = KEYS / 2, .max_mcast_grp = 1 << 10, .max_mcast_qp_attach = 64,
		.max_total_mcast_qp_attach = 1 << 16, .max_ah = 1 << 16, .max_srq = 1 << 10, .max_srq_wr = MAX_WR, .max_srq_sge = MAX_SGE,
		.max_pkeys = 1, .local_ca_ack_delay = 15, .phys_port_cnt = 2};
	memcpy(&a->node_guid, &gids[0][0][8], 8);
	a->sys_image_guid = a->node_guid;
	return 0;
}

int _ibv_query_gid_ex(struct ibv_context *c, uint32_t port, uint32_t index, struct ibv_gid_entry *e, uint32_t flags, size_t size) {
	(void)c;
	if (flags || size != sizeof *e || port < 1 || port > 2 || index >= (port == ROCE ? 16 : 8)) return EINVAL;
	if (index >= (port == ROCE ? 4 : 1)) return ENODATA;
	*e = (struct ibv_gid_entry){.gid_index = index, .port_num = port, .gid_type = port == IB ? 0 : 1 + index % 2, .ndev_ifindex = port == ROCE};
	memcpy(e->gid.raw, gids[port - 1][index], 16);
	return 0;
}

int ibv_query_pkey(struct ibv_context *c, uint8_t port, int index, uint16_t *pkey) {
	(void)c;
	if (port < 1 || port > 2 || index) return errno = EINVAL, -1;
	*pkey = 0xffff;
	return 0;
}

/* ---- objects ---- */

struct ibv_pd *ibv_alloc_pd(struct ibv_context *c) {
	LOCK;
	FAIL_NULL("ibv_alloc_pd");
	struct ibv_pd *p = calloc(1, sizeof *p);
	p->context = c;
	live++;
	UNLOCK;
	return p;
}

int ibv_dealloc_pd(struct ibv_pd *p) {
	LOCK;
	FAIL_INT("ibv_dealloc_pd");
	free(p);
	live--;
	UNLOCK;
	return 0;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t len, uint64_t iova, unsigned access) {
	LOCK;
	FAIL_NULL("ibv_reg_mr_iova2");
	int i = new_key(), e = 0;
	if (!i) e = ENOMEM;
	else if (write(-1, addr, 1) < 0 && errno == EFAULT) e = EFAULT;
	if (e) {
		UNLOCK;
		errno = e;
		return NULL;
	}
	struct mr *m = calloc(1, sizeof *m);
	m->mr = (struct ibv_mr){pd->context, pd, addr, len, i, i << 8 | 1, i << 8 | 1};
	m->iova = iova;
	m->access = access;
	keys[i].mr = m;
	live++;
	UNLOCK;
	return &m->mr;
}

/* A file in memory stands for the memory of another device. */
struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t len, uint64_t iova, int fd, int access) {
	uint64_t in = offset % sysconf(_SC_PAGESIZE);
	if (in != iova % sysconf(_SC_PAGESIZE)) {
		errno = EINVAL;
		return NULL;
	}
	char *at = mmap(NULL, in + len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset - in);
	if (at == MAP_FAILED) return NULL;
	struct ibv_mr *m = ibv_reg_mr_iova2(pd, at + in, len, iova, access);
	if (m) ((struct mr *)m)->mapped = at;
	else munmap(at, in + len);
	return m;
}

int ibv_dereg_mr(struct ibv_mr *ibm) {
	struct mr *m = (struct mr *)ibm;
	LOCK;
	FAIL_INT("ibv_dereg_mr");
	if (m->windows) {
		UNLOCK;
		return EINVAL;
	}
	keys[m->mr.handle].mr = NULL;
	if (m->mapped) munmap(m->mapped, (char *)m->mr.addr + m->mr.length - m->mapped);
	free(m);
	live--;
	UNLOCK;
	return 0;
}

int ibv_rereg_mr(struct ibv_mr *ibm, int flags, struct ibv_pd *pd, void *addr, size_t len, int access) {
	struct mr *m = (struct mr *)ibm;
	LOCK;
	int e = failing("ibv_rereg_mr");
	int bad = !(flags & 4) && access ? EINVAL : m->windows ? EBUSY : 0;
	if (e || bad) {
		UNLOCK;
		errno = e ? e : bad;
		return e ? -4 : -1;
	}
	if (flags & 1) m->mr.addr = addr, m->mr.length = len, m->iova = (uint64_t)addr;
	if (flags & 2) m->mr.pd = pd;
	if (flags & 4) m->access = access;
	m->mr.lkey = m->mr.rkey = (m->mr.lkey & ~0xffu) | ((m->mr.lkey + 1) & 0xff); /* keys may change */
	UNLOCK;
	return 0;
}

/* Channels whose descriptor never may be read, and is in error once the device is gone, as those of later kernels are: the end of
 * a full pipe that is for writing. */
static int mute;

static int full_pipe(int *reader) {
	int ends[2];
	char page[4096] = {0};
	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK)) abort();
	while (write(ends[1], page, sizeof page) > 0) {
	}
	*reader = ends[0];
	return ends[1];
}

void fake_mute(int on) {
	LOCK;
	mute = on;
	UNLOCK;
}

/* How many devices are open. */
int fake_open(void) {
	LOCK;
	int n = 0;
	for (struct ctx *x = contexts; x; x = x->next) n++;
	UNLOCK;
	return n;
}

/* The devices go: fatal raises their event, and at_end ends all events and the calls. While mute is on, no descriptor tells of
 * that. fake_gone(0, 0) lets devices be opened anew. */
void fake_gone(int fatal, int at_end) {
	LOCK;
	gone = at_end;
	for (struct ctx *x = contexts; x; x = x->next) {
		if (fatal) async_event(&x->v.context, EV_DEVICE_FATAL, NULL);
		if (!at_end || mute) continue;
		if (x->channel && x->channel->reader) { /* that alone is to tell of the end */
			close(x->channel->reader), x->channel->reader = 0, x->channel->late = 1;
			continue;
		}
		if (x->channel) ring_bell(x->channel->c.fd);
		ring_bell(x->v.context.async_fd);
	}
	UNLOCK;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *c) {
	LOCK;
	FAIL_NULL("ibv_create_comp_channel");
	struct channel *ch = calloc(1, sizeof *ch);
	ch->c.context = c;
	ch->c.fd = mute ? full_pipe(&ch->reader) : eventfd(0, EFD_CLOEXEC);
	((struct ctx *)((char *)c - offsetof(struct ctx, v.context)))->channel = ch;
	live++;
	UNLOCK;
	return &ch->c;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *c) {
	LOCK;
	FAIL_INT("ibv_destroy_comp_channel");
	if (c->refcnt) {
		UNLOCK;
		return EBUSY;
	}
	close(c->fd);
	if (((struct channel *)c)->reader) close(((struct channel *)c)->reader);
	((struct ctx *)((char *)c->context - offsetof(struct ctx, v.context)))->channel = NULL;
	free(c);
	live--;
	UNLOCK;
	return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *x, int cqe, void *user, struct ibv_comp_channel *ch, int vector) {
	LOCK;
	FAIL_NULL("ibv_create_cq");
	if (vector < 0 || vector >= x->num_comp_vectors) {
		UNLOCK;
		errno = EINVAL;
		return NULL;
	}
	struct cq *c = calloc(1, sizeof *c);
	c->cq.context = x, c->cq.channel = ch, c->cq.cq_context = user, c->cq.cqe = c->cap = cqe;
	c->ch = (struct channel *)ch;
	c->cq.handle = vector; /* for tests to see */
	if (ch) ch->refcnt++;
	c->ring = calloc(cqe, sizeof *c->ring);
	live++;
	UNLOCK;
	return &c->cq;
}

int ibv_resize_cq(struct ibv_cq *ibc, int cqe) {
	struct cq *c = (struct cq *)ibc;
	LOCK;
	FAIL_INT("ibv_resize_cq");
	if (cqe < c->count) {
		UNLOCK;
		return EBUSY;
	}
	struct cqe *r = calloc(cqe, sizeof *r);
	for (int i = 0; i < c->count; i++) r[i] = c->ring[(c->head + i) % c->cap];
	free(c->ring);
	c->ring = r, c->head = 0, c->cq.cqe = c->cap = cqe;
	UNLOCK;
	return 0;
}

int ibv_destroy_cq(struct ibv_cq *ibc) {
	struct cq *c = (struct cq *)ibc;
	LOCK;
	FAIL_INT("ibv_destroy_cq");
	if (c->users) {
		UNLOCK;
		return EBUSY;
	}
	if (c->ch) forget(&c->ch->events, c), c->ch->c.refcnt--;
	forget_async(c->cq.context, c);
	while (c->reported || c->async) pthread_cond_wait(&acked, &big);
	free(c->ring);
	free(c);
	live--;
	UNLOCK;
	return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *ibch, struct ibv_cq **cq, void **user) {
	struct channel *ch = (struct channel *)ibch;
	struct node n;
	LOCK;
	int e = no_event("ibv_get_cq_event");
	if (ch->late) ch->late = 0, e = EAGAIN; /* the call was under way as the descriptor came to be in error */
	if (e != EAGAIN || !take(&ch->events, ch->c.fd, &n)) {
		UNLOCK;
		errno = e;
		return -1;
	}
	struct cq *c = n.cq;
	c->reported++;
	*cq = &c->cq, *user = c->cq.cq_context;
	UNLOCK;
	return 0;
}

void ibv_ack_cq_events(struct ibv_cq *c, unsigned n) {
	LOCK;
	((struct cq *)c)->reported -= n;
	pthread_cond_broadcast(&acked);
	UNLOCK;
}

static int *async_count(struct ibv_async_event *e) {
	static int of_devices;
	switch (e->event_type) {
	case EV_DEVICE_FATAL: return &of_devices;
	case EV_CQ_ERR: return &((struct cq *)e->element.cq)->async;
	case EV_SRQ_LIMIT: return &((struct srq *)e->element.srq)->async;
	default: return &((struct qp *)e->element.qp)->async; /* of a handle, if it is a target's */
	}
}

int ibv_get_async_event(struct ibv_context *c, struct ibv_async_event *e) {
	struct ctx *x = (void *)((char *)c - offsetof(struct ctx, v.context));
	struct node n;
	LOCK;
	if (!take(&x->events, c->async_fd, &n)) { /* which comes to its end behind what was raised before */
		errno = no_event("ibv_get_async_event");
		UNLOCK;
		return -1;
	}
	*e = n.ev;
	++*async_count(e);
	UNLOCK;
	return 0;
}

void ibv_ack_async_event(struct ibv_async_event *e) {
	LOCK;
	--*async_count(e);
	pthread_cond_broadcast(&acked);
	UNLOCK;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *a) {
	LOCK;
	FAIL_NULL("ibv_create_srq");
	struct srq *s = calloc(1, sizeof *s);
	s->srq.context = pd->context, s->srq.pd = pd;
	s->q = (struct rqueue){.ring = calloc(a->attr.max_wr, sizeof(struct rwr)), .cap = a->attr.max_wr, .sges = a->attr.max_sge};
	live++;
	UNLOCK;
	return &s->srq;
}

int ibv_query_srq(struct ibv_srq *ibs, struct ibv_srq_attr *a) {
	struct srq *s = (struct srq *)ibs;
	LOCK;
	FAIL_INT("ibv_query_srq");
	*a = (struct ibv_srq_attr){s->q.cap, s->q.sges, s->limit};
	UNLOCK;
	return 0;
}

int ibv_modify_srq(struct ibv_srq *ibs, struct ibv_srq_attr *a, int mask) {
	struct srq *s = (struct srq *)ibs;
	LOCK;
	FAIL_INT("ibv_modify_srq");
	if ((mask & 1) && (int)a->max_wr < s->q.count) {
		UNLOCK;
		return EINVAL;
	}
	if (mask & 1) {
		struct rwr *r = calloc(a->max_wr, sizeof *r);
		for (int i = 0; i < s->q.count; i++) r[i] = s->q.ring[(s->q.head + i) % s->q.cap];
		free(s->q.ring);
		s->q.ring = r, s->q.head = 0, s->q.cap = a->max_wr;
	}
	if (mask & 2) s->limit = a->srq_limit;
	if (s->limit && s->q.count < s->limit) s->limit = 0, async_event(s->srq.context, EV_SRQ_LIMIT, s);
	UNLOCK;
	return 0;
}

int ibv_destroy_srq(struct ibv_srq *ibs) {
	struct srq *s = (struct srq *)ibs;
	LOCK;
	FAIL_INT("ibv_destroy_srq");
	if (s->users) {
		UNLOCK;
		return EBUSY;
	}
	if (s->xrcd) {
		xsrqs[s->num - FIRST_SRQN] = NULL;
		s->xrcd->users--, s->cq->users--;
		purge_srq(s->cq, s); /* as drivers do */
	}
	forget_async(s->srq.context, s);
	while (s->async) pthread_cond_wait(&acked, &big);
	free(s->q.ring);
	free(s);
	live--;
	UNLOCK;
	return 0;
}

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *a) {
	LOCK;
	FAIL_NULL("ibv_create_ah");
	if (a->port_num < 1 || a->port_num > 2 || (a->is_global && a->grh.sgid_index >= (a->port_num == ROCE ? 4 : 1))) {
		UNLOCK;
		errno = EINVAL;
		return NULL;
	}
	struct ah *h = calloc(1, sizeof *h);
	h->ah.context = pd->context, h->ah.pd = pd, h->attr = *a;
	live++;
	UNLOCK;
	return &h->ah;
}

int ibv_destroy_ah(struct ibv_ah *h) {
	LOCK;
	FAIL_INT("ibv_destroy_ah");
	free(h);
	live--;
	UNLOCK;
	return 0;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *a) {
	LOCK;
	FAIL_NULL("ibv_create_qp");
	int n = FIRST_QPN, e = 0;
	while (n < QPS && qps[n]) n++; /* the numbers of destroyed QPs are given again at once */
	if (a->cap.max_inline_data > MAX_INLINE) e = EINVAL;
	if (n == QPS) e = ENOMEM;
	if (e) {
		UNLOCK;
		errno = e;
		return NULL;
	}
	struct qp *q = calloc(1, sizeof *q);
	if (!a->cap.max_send_wr) a->cap.max_send_wr = 1;
	q->init = *a;
	if (a->qp_type == XRC_SEND) a->recv_cq = a->send_cq;
	q->qp = (struct ibv_qp){.context = pd->context, .pd = pd, .send_cq = a->send_cq, .recv_cq = a->recv_cq, .srq = a->srq, .qp_num = n, .qp_type = a->qp_type};
	q->scq = (struct cq *)a->send_cq, q->rcq = (struct cq *)a->recv_cq, q->srq = (struct srq *)a->srq;
	q->scq->users++, q->rcq->users++;
	if (q->srq) q->srq->users++;
	q->sq = calloc(a->cap.max_send_wr, sizeof *q->sq);
	q->rq = (struct rqueue){.ring = calloc(a->cap.max_recv_wr + 1, sizeof(struct rwr)), .cap = a->cap.max_recv_wr, .sges = a->cap.max_recv_sge};
	qps[n] = q;
	live++;
	UNLOCK;
	return &q->qp;
}

static struct ibv_qp *new_handle(struct qp *real) {
	struct qp *h = calloc(1, sizeof *h);
	h->qp = (struct ibv_qp){.context = real->qp.context, .qp_num = real->qp.qp_num, .qp_type = XRC_RECV};
	h->real = real, h->handle = real->handle, real->handle = h;
	live++;
	return &h->qp;
}

static struct ibv_qp *create_qp_ex(struct ibv_context *c, struct ibv_qp_init_attr_ex *a) {
	if (a->qp_type != XRC_RECV) {
		LOCK;
		uint64_t ops = a->send_ops_flags, lacks = lacking;
		FAIL_NULL("ibv_create_qp_ex");
		UNLOCK;
		if (a->comp_mask != (1 | 1 << 6) || a->qp_type != RC || ops & (~(uint64_t)OPS | lacks)) return errno = EOPNOTSUPP, NULL;
		struct qp *q = (struct qp *)ibv_create_qp(a->pd, (struct ibv_qp_init_attr *)a);
		if (!q) return NULL;
		q->ops = ops;
		q->ex.wr_start = wr_start, q->ex.wr_complete = wr_complete;
		q->ex.wr_flush = ops & OP_PLACE ? wr_flush : (void *)1; /* what older libraries have there */
		q->ex.wr_atomic_write = ops & OP_ATOMIC_WRITE ? wr_atomic_write : (void *)1;
		return &q->qp;
	}
	LOCK;
	FAIL_NULL("ibv_create_qp_ex");
	int n = FIRST_QPN;
	while (n < QPS && qps[n]) n++;
	if (a->comp_mask != 1 << 1 || n == QPS) {
		UNLOCK;
		return errno = EINVAL, NULL;
	}
	struct qp *q = calloc(1, sizeof *q);
	q->qp = (struct ibv_qp){.context = c, .qp_num = n, .qp_type = XRC_RECV};
	q->xrcd = (struct xrcd *)a->xrcd, q->domain = q->xrcd->domain;
	q->xrcd->users++;
	qps[n] = q;
	struct ibv_qp *h = new_handle(q);
	UNLOCK;
	return h;
}

static struct ibv_qp *open_qp(struct ibv_context *c, struct ibv_qp_open_attr *a) {
	(void)c;
	LOCK;
	FAIL_NULL("ibv_open_qp");
	struct qp *q = find(a->qp_num);
	struct ibv_qp *h = NULL;
	if (a->comp_mask == (1 | 1 << 1 | 1 << 3) && a->qp_type == XRC_RECV && q && q->domain && q->domain == ((struct xrcd *)a->xrcd)->domain) h = new_handle(q);
	UNLOCK;
	if (!h) errno = EINVAL;
	return h;
}

struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *q) { return ((struct qp *)q)->ops ? &((struct qp *)q)->ex : NULL; }

static int get_srq_num(struct ibv_srq *s, uint32_t *n) {
	LOCK;
	FAIL_INT("ibv_get_srq_num");
	UNLOCK;
	*n = ((struct srq *)s)->num;
	return 0;
}

static struct ibv_srq *create_srq_ex(struct ibv_context *c, struct ibv_srq_init_attr_ex *a) {
	(void)c;
	LOCK;
	FAIL_NULL("ibv_create_srq_ex");
	int i = 0;
	while (i < SRQS && xsrqs[i]) i++;
	UNLOCK;
	if (a->comp_mask != 15 || a->srq_type != 1 || i == SRQS) return errno = EINVAL, NULL;
	struct srq *s = (struct srq *)ibv_create_srq(a->pd, (struct ibv_srq_init_attr *)a);
	if (!s) return NULL;
	LOCK;
	for (i = 0; xsrqs[i];) i++;
	xsrqs[i] = s, s->num = FIRST_SRQN + i;
	s->xrcd = (struct xrcd *)a->xrcd, s->cq = (struct cq *)a->cq;
	s->xrcd->users++, s->cq->users++;
	UNLOCK;
	return &s->srq;
}

static struct ibv_xrcd *open_xrcd(struct ibv_context *c, struct ibv_xrcd_init_attr *a) {
	struct stat st = {0};
	if (a->comp_mask != 3 || (a->fd != -1 && fstat(a->fd, &st))) return errno = EINVAL, NULL;
	LOCK;
	FAIL_NULL("ibv_open_xrcd");
	struct domain *d = a->fd == -1 ? NULL : domains;
	while (d && (d->dev != st.st_dev || d->ino != st.st_ino)) d = d->next;
	int e = !d && a->fd != -1 && !(a->oflags & O_CREAT) ? EAGAIN : d && a->oflags & O_EXCL ? EINVAL : 0; /* the kernel's words */
	if (e) {
		UNLOCK;
		return errno = e, NULL;
	}
	if (!d) {
		d = calloc(1, sizeof *d);
		d->dev = st.st_dev, d->ino = st.st_ino, d->next = domains;
		domains = d;
	}
	d->users++;
	struct xrcd *x = calloc(1, sizeof *x);
	x->xrcd.context = c, x->domain = d;
	live++;
	UNLOCK;
	return &x->xrcd;
}

static int close_xrcd(struct ibv_xrcd *ibx) {
	struct xrcd *x = (struct xrcd *)ibx;
	LOCK;
	FAIL_INT("ibv_close_xrcd");
	if (x->users) {
		UNLOCK;
		return EBUSY;
	}
	if (!--x->domain->users) {
		struct domain **d = &domains;
		while (*d != x->domain) d = &(*d)->next;
		*d = x->domain->next;
		free(x->domain);
	}
	free(x);
	live--;
	UNLOCK;
	return 0;
}

static struct qp *real_of(struct ibv_qp *q) { return ((struct qp *)q)->real ? ((struct qp *)q)->real : (struct qp *)q; }

static void clean(struct qp *q) {
	while (q->scount) {
		free(q->sq[q->shead].inl);
		q->shead = (q->shead + 1) % q->init.cap.max_send_wr;
		q->scount--;
	}
	if (q->qp.qp_type == XRC_RECV) {
		for (int i = 0; i < SRQS; i++)
			if (xsrqs[i]) purge(xsrqs[i]->cq, q);
	} else {
		purge(q->scq, q);
		purge(q->rcq, q);
	}
	q->sbusy = q->unsignaled = q->est = q->last_wqe = 0;
	q->rq.count = q->rq.busy = 0;
}

int ibv_modify_qp(struct ibv_qp *ibq, struct ibv_qp_attr *a, int mask) {
	struct qp *q = real_of(ibq);
	LOCK;
	FAIL_INT("ibv_modify_qp");
	int e = 0;
	if ((mask & 1 << 4) && a->pkey_index) e = EINVAL;
	if ((mask & 1 << 5) && (a->port_num < 1 || a->port_num > 2)) e = EINVAL;
	if (mask & 1 << 7) {
		struct ibv_ah_attr *h = &a->ah_attr;
		if (h->port_num == ROCE && !h->is_global) e = EINVAL;
		if (h->is_global && h->grh.sgid_index >= (h->port_num == ROCE ? 4 : 1)) e = EINVAL;
	}
	if ((mask & 1 << 8) && a->path_mtu > (q->a.port_num == IB ? 4u : 3u)) e = EINVAL;
	if ((mask & 1 << 1) && a->cur_qp_state != q->qp.state) e = EINVAL;
	if (e) {
		UNLOCK;
		return e;
	}
	struct ibv_qp_attr *t = &q->a;
	if (mask & 1 << 3) t->qp_access_flags = a->qp_access_flags;
	if (mask & 1 << 4) t->pkey_index = a->pkey_index;
	if (mask & 1 << 5) t->port_num = a->port_num;
	if (mask & 1 << 6) t->qkey = a->qkey;
	if (mask & 1 << 7) t->ah_attr = a->ah_attr;
	if (mask & 1 << 8) t->path_mtu = a->path_mtu;
	if (mask & 1 << 9) t->timeout = a->timeout;
	if (mask & 1 << 10) t->retry_cnt = a->retry_cnt;
	if (mask & 1 << 11) t->rnr_retry = a->rnr_retry;
	if (mask & 1 << 12) t->rq_psn = a->rq_psn;
	if (mask & 1 << 13) t->max_rd_atomic = a->max_rd_atomic;
	if (mask & 1 << 15) t->min_rnr_timer = a->min_rnr_timer;
	if (mask & 1 << 16) t->sq_psn = a->sq_psn;
	if (mask & 1 << 17) t->max_dest_rd_atomic = a->max_dest_rd_atomic;
	if (mask & 1 << 20) t->dest_qp_num = a->dest_qp_num;
	if (mask & 1) {
		q->qp.state = t->qp_state = a->qp_state;
		switch (a->qp_state) {
		case RESET:
			clean(q);
			*t = (struct ibv_qp_attr){0};
			break;
		case RTS: run(q); break;
		case SQD:
			if ((mask & 1 << 2) && a->en_sqd_async_notify) async_event(q->qp.context, EV_SQ_DRAINED, q);
			break;
		case ERR: to_err(q); break;
		}
	}
	UNLOCK;
	return 0;
}

int ibv_query_qp(struct ibv_qp *ibq, struct ibv_qp_attr *a, int mask, struct ibv_qp_init_attr *init) {
	struct qp *q = real_of(ibq);
	(void)mask;
	LOCK;
	FAIL_INT("ibv_query_qp");
	*a = q->a;
	a->cur_qp_state = q->qp.state;
	*init = q->init;
	UNLOCK;
	return 0;
}

int ibv_destroy_qp(struct ibv_qp *ibq) {
	struct qp *q = (struct qp *)ibq;
	LOCK;
	FAIL_INT("ibv_destroy_qp");
	if (q->ngroups) {
		UNLOCK;
		return EBUSY;
	}
	if (q->real) {
		struct qp **h = &q->real->handle, *real = q->real;
		while (*h != q) h = &(*h)->handle;
		*h = q->handle;
		forget_async(q->qp.context, q);
		while (q->async) pthread_cond_wait(&acked, &big);
		free(q);
		live--;
		if (!real->handle) {
			clean(real);
			qps[real->qp.qp_num] = NULL;
			real->xrcd->users--;
			free(real);
		}
		UNLOCK;
		return 0;
	}
	clean(q);
	qps[q->qp.qp_num] = NULL;
	forget_async(q->qp.context, q);
	while (q->async) pthread_cond_wait(&acked, &big);
	q->scq->users--, q->rcq->users--;
	if (q->srq) q->srq->users--;
	free(q->sq);
	free(q->rq.ring);
	free(q);
	live--;
	UNLOCK;
	return 0;
}

/* Groups of InfiniBand have LIDs, and those of Ethernet have none. */
static int has_lid(struct qp *q, uint16_t lid) { return q->a.port_num == IB ? lid >= 0xc000 && lid < 0xffff : !lid; }

int ibv_attach_mcast(struct ibv_qp *ibq, const union ibv_gid *g, uint16_t lid) {
	struct qp *q = (struct qp *)ibq;
	LOCK;
	FAIL_INT("ibv_attach_mcast");
	if (q->ngroups == GROUPS || q->qp.state == RESET || !has_lid(q, lid)) {
		UNLOCK;
		return q->ngroups == GROUPS ? ENOMEM : EINVAL;
	}
	memcpy(q->groups[q->ngroups].gid, g->raw, 16);
	q->groups[q->ngroups++].lid = lid;
	UNLOCK;
	return 0;
}

int ibv_detach_mcast(struct ibv_qp *ibq, const union ibv_gid *g, uint16_t lid) {
	struct qp *q = (struct qp *)ibq;
	LOCK;
	FAIL_INT("ibv_detach_mcast");
	for (int i = 0; i < q->ngroups; i++)
		if (!memcmp(q->groups[i].gid, g->raw, 16) && q->groups[i].lid == lid) {
			q->groups[i] = q->groups[--q->ngroups];
			UNLOCK;
			return 0;
		}
	UNLOCK;
	return EINVAL;
}
