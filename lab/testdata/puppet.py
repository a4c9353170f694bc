# The guest's end of the tests in Go. The test sends requests over TCP, one JSON object a line. This
# program carries them out with the verbs of the guest's kernel, and answers each of them. It makes
# no decisions. Each connection opens the device for itself. When it ends, all that it has made is
# destroyed. Usage: puppet.py PORT DEVICE
import base64
import json
import os
import socket
import struct
import sys
import threading
import time

import pyverbs.enums as e
from pyverbs.addr import AH, AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR, MW, MWBindInfo
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

POLL_INTERVAL = 0.0005  # seconds
SEND_WITH_INV, BIND_MW = 9, 8


def swap32(x):
    """Converts between a number and the C struct's field that holds it in network order."""
    return struct.unpack("=I", struct.pack("!I", x))[0]


class Puppet:
    def __init__(self, device):
        self.device = device
        self.context = Context(name=device)
        self.pd = PD(self.context)
        self.mrs, self.mws, self.ahs = [], [], []
        self.cq = self.qp = None

    def close(self):
        # A QP is closed before what it uses. The context closes the rest.
        for thing in [self.qp, self.cq, *self.ahs, *self.mws, *self.mrs, self.pd, self.context]:
            if thing is not None:
                thing.close()

    def create(self, Type, Cap, CQE, Access, QKey):
        self.cq = CQ(self.context, CQE, None, None, 0)
        cap = QPCap(max_send_wr=Cap["MaxSendWR"], max_recv_wr=Cap["MaxRecvWR"], max_send_sge=Cap["MaxSendSGE"],
                    max_recv_sge=Cap["MaxRecvSGE"], max_inline_data=Cap["MaxInlineData"])
        self.qp = QP(self.pd, QPInitAttr(qp_type=Type, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=0))
        attr = QPAttr(qp_state=e.IBV_QPS_INIT, port_num=1)
        attr.pkey_index = 0
        mask = e.IBV_QP_STATE | e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT
        if Type == e.IBV_QPT_UD:
            attr.qkey = QKey
            mask |= e.IBV_QP_QKEY
        else:
            attr.qp_access_flags = Access
            mask |= e.IBV_QP_ACCESS_FLAGS
        self.qp.modify(attr, mask)
        return self.qp.qp_num

    def ah_attr(self, gid, index):
        return AHAttr(port_num=1, is_global=1, gr=GlobalRoute(dgid=GID(gid), sgid_index=index, hop_limit=64))

    def connect(self, Type, GID, GIDIndex, QPN, RQPSN, SQPSN, MTU, Timeout, Retry, RNRRetry, RNRTimer, RDAtomic):
        attr = QPAttr(qp_state=e.IBV_QPS_RTR)
        mask = e.IBV_QP_STATE
        if Type != e.IBV_QPT_UD:
            attr.path_mtu, attr.dest_qp_num, attr.rq_psn = MTU, QPN, RQPSN
            attr.ah_attr = self.ah_attr(GID, GIDIndex)
            mask |= e.IBV_QP_AV | e.IBV_QP_PATH_MTU | e.IBV_QP_DEST_QPN | e.IBV_QP_RQ_PSN
        if Type == e.IBV_QPT_RC:
            attr.max_dest_rd_atomic, attr.min_rnr_timer = RDAtomic, RNRTimer
            mask |= e.IBV_QP_MAX_DEST_RD_ATOMIC | e.IBV_QP_MIN_RNR_TIMER
        self.qp.modify(attr, mask)
        attr = QPAttr(qp_state=e.IBV_QPS_RTS)
        attr.sq_psn = SQPSN
        mask = e.IBV_QP_STATE | e.IBV_QP_SQ_PSN
        if Type == e.IBV_QPT_RC:
            attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.max_rd_atomic = Timeout, Retry, RNRRetry, RDAtomic
            mask |= e.IBV_QP_TIMEOUT | e.IBV_QP_RETRY_CNT | e.IBV_QP_RNR_RETRY | e.IBV_QP_MAX_QP_RD_ATOMIC
        self.qp.modify(attr, mask)

    def modify(self, State):
        self.qp.modify(QPAttr(qp_state=State), e.IBV_QP_STATE)

    def state(self):
        return self.qp.query(e.IBV_QP_STATE)[0].qp_state

    def mr(self, Length, Access):
        mr = MR(self.pd, Length, Access)
        self.mrs.append(mr)
        return {"ID": len(self.mrs) - 1, "Addr": mr.buf, "LKey": mr.lkey, "RKey": mr.rkey}

    def put(self, MR, Offset, Data):
        data = base64.b64decode(Data)
        self.mrs[MR].write(data, len(data), Offset)

    def get(self, MR, Offset, Length):
        return base64.b64encode(self.mrs[MR].read(Length, Offset)).decode()

    def dereg(self, MR):
        self.mrs[MR].close()

    def ah(self, GID, GIDIndex):
        self.ahs.append(AH(self.pd, attr=self.ah_attr(GID, GIDIndex)))

    def bind(self, MR, Length, Access):
        """Binds a new window of type 2 to the start of a region, with a signaled work request."""
        mw, mr = MW(self.pd, 2), self.mrs[MR]
        self.mws.append(mw)
        wr = SendWR(opcode=BIND_MW, num_sge=0, send_flags=e.IBV_SEND_SIGNALED)
        wr.set_bind_wr(mw, MWBindInfo(mr, mr.buf, Length, Access))
        self.qp.post_send(wr)
        return wr.rkey

    def post_send(self, WRs):
        """Posts all work requests with one call of the C function."""
        posted = []  # keeps the work requests alive: they refer to each other by C pointers only
        for w in reversed(WRs):
            sg = [SGE(s["Addr"], s["Length"], s["LKey"]) for s in w["SGList"] or []]
            op, remote = w["Op"], w["Remote"]
            imm = w["InvalidateRKey"] if op == SEND_WITH_INV else swap32(w["Imm"])
            wr = SendWR(wr_id=w["ID"], opcode=op, num_sge=len(sg), sg=sg, imm_data=imm, send_flags=w["Flags"])
            if op in (e.IBV_WR_ATOMIC_CMP_AND_SWP, e.IBV_WR_ATOMIC_FETCH_AND_ADD):
                wr.set_wr_atomic(remote["RKey"], remote["VA"], w["CompareAdd"], w["Swap"])
            elif op in (e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_WRITE_WITH_IMM, e.IBV_WR_RDMA_READ):
                wr.set_wr_rdma(remote["RKey"], remote["VA"])
            elif w["RemoteQPN"]:
                wr.set_wr_ud(self.ahs[0], w["RemoteQPN"], w["RemoteQKey"])
            if posted:
                wr.next_wr = posted[-1]
            posted.append(wr)
        self.qp.post_send(posted[-1])

    def post_recv(self, WRs):
        for w in WRs:
            sg = [SGE(s["Addr"], s["Length"], s["LKey"]) for s in w["SGList"]]
            self.qp.post_recv(RecvWR(wr_id=w["ID"], num_sge=len(sg), sg=sg))

    def poll(self, Max, Seconds):
        """Returns completions as soon as there are some, or none after so many seconds."""
        until = time.monotonic() + Seconds
        while True:
            _, wcs = self.cq.poll(Max)
            if wcs or time.monotonic() > until:
                return [{"ID": w.wr_id, "Status": w.status, "Op": w.opcode, "Flags": w.wc_flags, "ByteLen": w.byte_len,
                         "Imm": w.imm_data if w.wc_flags & e.IBV_WC_WITH_INV else swap32(w.imm_data),
                         "QPN": w.qp_num, "SrcQPN": w.src_qp} for w in wcs]
            time.sleep(POLL_INTERVAL)

    def counters(self):
        where = f"/sys/class/infiniband/{self.device}/ports/1/hw_counters"
        with open(os.path.join(where, "lifespan")) as f:  # for so many ms the kernel may return old values
            time.sleep(2 * int(f.read()) / 1000)
        out = {}
        for name in os.listdir(where):
            if name != "lifespan":
                with open(os.path.join(where, name)) as f:
                    out[name] = int(f.read())
        return out


def serve(conn, device):
    stream = conn.makefile("rwb")
    puppet = Puppet(device)
    try:
        for line in stream:
            request = json.loads(line)
            try:
                reply = {"Value": getattr(puppet, request["Do"])(**request["With"])}
            except (PyverbsError, OSError) as fault:
                reply = {"Error": f"{request['Do']}: {fault}"}
            stream.write(json.dumps(reply).encode() + b"\n")
            stream.flush()
    except ConnectionError:
        pass
    finally:
        puppet.close()
        conn.close()


def main():
    listener = socket.create_server(("", int(sys.argv[1])))
    while True:
        conn, _ = listener.accept()
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=serve, args=(conn, sys.argv[2]), daemon=True).start()


main()
