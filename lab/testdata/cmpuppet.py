"""One end of a conversation of connection managers, with librdmacm. It prints the events. Usage:

    listen  SPACE ADDR PORT accept|hangup|reject
    connect SPACE ADDR PORT wait|hangup

SPACE is tcp or udp. With hangup, the program disconnects as soon as it is connected. With accept
and wait, it leaves that to the peer. Each event is a line: its name and its status. If the peer has
sent any, its resources and private data follow. In the TCP port space, the program ends after its
first connection. A listener that rejects or serves UDP never ends.
"""
import ctypes, os, socket, struct, sys
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_uint8, c_uint32, c_void_p

cm = ctypes.CDLL("librdmacm.so.1", use_errno=True)
cm.rdma_create_event_channel.restype = c_void_p
cm.rdma_event_str.restype = c_char_p


class ConnParam(Structure):  # struct rdma_conn_param
    _fields_ = [("private_data", c_void_p), ("private_data_len", c_uint8), ("responder_resources", c_uint8),
                ("initiator_depth", c_uint8), ("flow_control", c_uint8), ("retry_count", c_uint8),
                ("rnr_retry_count", c_uint8), ("srq", c_uint8), ("qp_num", c_uint32)]


class Event(Structure):  # struct rdma_cm_event; its struct rdma_ud_param begins like struct rdma_conn_param
    _fields_ = [("id", c_void_p), ("listen_id", c_void_p), ("event", c_int), ("status", c_int), ("conn", ConnParam)]


class QPInitAttr(Structure):  # struct ibv_qp_init_attr
    _fields_ = [("context", c_void_p), ("send_cq", c_void_p), ("recv_cq", c_void_p), ("srq", c_void_p),
                ("max_send_wr", c_uint32), ("max_recv_wr", c_uint32), ("max_send_sge", c_uint32),
                ("max_recv_sge", c_uint32), ("max_inline_data", c_uint32), ("qp_type", c_int), ("sq_sig_all", c_int)]


RC, UD = 2, 4
role, space, addr, port, mode = sys.argv[1:]
ps, qp_type = {"tcp": (0x0106, RC), "udp": (0x0111, UD)}[space]


def call(name, *args):
    if getattr(cm, name)(*args) != 0:
        sys.exit("%s: %s" % (name, os.strerror(ctypes.get_errno())))


def sockaddr():
    if ":" in addr:
        return struct.pack("=H", socket.AF_INET6) + struct.pack("!HI", int(port), 0) + socket.inet_pton(socket.AF_INET6, addr) + bytes(4)
    return struct.pack("=H", socket.AF_INET) + struct.pack("!H", int(port)) + socket.inet_aton(addr) + bytes(8)


def param(data, responder_resources, initiator_depth):
    buf = ctypes.create_string_buffer(data)
    p = ConnParam(ctypes.addressof(buf), len(data), responder_resources, initiator_depth, 0, 7, 7, 0, 0)
    p.keep = buf
    return p


def create_qp(id):
    call("rdma_create_qp", id, None, byref(QPInitAttr(None, None, None, None, 4, 4, 1, 1, 0, qp_type, 1)))


def destroy(id, with_qp=True):
    if with_qp:
        cm.rdma_destroy_qp(id)
    call("rdma_destroy_id", id)


def next_event():
    p = POINTER(Event)()
    call("rdma_get_cm_event", channel, byref(p))
    e = p.contents
    name = cm.rdma_event_str(e.event).decode().replace("RDMA_CM_EVENT_", "")
    line = "%s %d" % (name, e.status)
    if e.conn.private_data and e.conn.private_data_len:
        data = ctypes.string_at(e.conn.private_data, e.conn.private_data_len).rstrip(b"\0").decode()
        if space == "tcp" and e.status == 0:
            line += " resources %d/%d" % (e.conn.responder_resources, e.conn.initiator_depth)
        line += " " + repr(data)
    id = c_void_p(e.id)
    call("rdma_ack_cm_event", p)
    print(line, flush=True)
    return name, id


channel = c_void_p(cm.rdma_create_event_channel())
first = c_void_p()
call("rdma_create_id", channel, byref(first), None, ps)
if role == "listen":
    call("rdma_bind_addr", first, sockaddr())
    call("rdma_listen", first, 0)
    print("LISTENING", flush=True)
else:
    call("rdma_resolve_addr", first, None, sockaddr(), 5000)
while True:
    name, id = next_event()
    if name == "ADDR_RESOLVED":
        call("rdma_resolve_route", id, 5000)
    elif name == "ROUTE_RESOLVED":
        create_qp(id)
        call("rdma_connect", id, byref(param(b"hello", 6, 7)))
    elif name == "CONNECT_REQUEST" and mode == "reject":
        no = b"no, thanks"
        call("rdma_reject", id, no, c_uint8(len(no)))
        destroy(id, False)
    elif name == "CONNECT_REQUEST":
        create_qp(id)
        call("rdma_accept", id, byref(param(b"welcome", 2, 4)))
    elif name == "ESTABLISHED" and space == "udp":
        break
    elif name == "ESTABLISHED":
        if mode == "hangup":
            call("rdma_disconnect", id)
    else:
        if name == "DISCONNECTED":
            cm.rdma_disconnect(id)  # if the peer has disconnected first, this answers it
        destroy(id)
        break
