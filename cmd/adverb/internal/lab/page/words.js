// All that the page says. A translation is another object of the same form, in a file of its own, and a line in languages.
// {name} stands for a value. The field's terms, such as the names of packets and states, are not translated.

import { zh } from "./words-zh.js";

const en = {
  lesson: "Lesson", copy: "Copy link", copied: "Copied", theme: "Light or dark", help: "Keys", close: "Close",
  step: "Step", back: "Back", play: "Play", pause: "Pause", run: "Run until", restart: "Restart",
  happened: "What has just happened", link: "The link", posts: "Let the programs do more", settings: "Settings", journal: "All that has happened",
  allBytes: "All bytes", loading: "The software HCA is being loaded…", begin: "Nothing yet. Press Step.",
  hint: "Choose a packet to see its bytes, and to drop, delay, damage, copy or hurry it.",
  idle: "no packet is under way", clock: "step {step}, {time}", apply: "Restart with these settings", usual: "Usual settings",
  other: "This link was made with another version of the lab ({by}; here is {version}). It may show other packets than its author saw.",
  earlier: "{n} earlier packets are not shown", cut: "the link is cut",
  until: { cqe: "a completion", trouble: "a NAK, a loss, an error", program: "a program's turn", timer: "a timer", end: "the end" },
  keys: [
    ["s", "one step"], ["u", "back: one step, or one decision"], ["p", "play and pause"], ["e", "run until what is chosen beside the button"],
    ["r", "begin again"], ["j, k", "choose the next packet, or the one before"], ["x", "drop the chosen packet"], ["l", "delay it"],
    ["b", "damage it: turn over one bit"], ["c", "copy it"], ["n", "have it arrive now, before others"], ["?", "this list"],
  ],
  keysTitle: "Keys",
  // Hosts.
  host: "Host {name}", noQP: "no QP yet", qp: "QP {qpn} at {addr}", queue: { sq: "Send queue", rq: "Receive queue", cq: "Completion queue" },
  empty: "empty", polled: "polled", wqeSend: "wr_id {id} · {op} · {bytes} B · PSN {first}–{last}", wqeSendOne: "wr_id {id} · {op} · {bytes} B · PSN {first}",
  sent: "{sent} of {packets} packets sent, {acked} acknowledged", wqeRecv: "wr_id {id} · {bytes} B", inUse: "wr_id {id} · {got} B have come",
  cqe: "wr_id {id} · {op} · {name}", numbers: "Numbers and timers", memory: "Memory",
  psn: { next: "next PSN to send", una: "oldest not acknowledged", expected: "PSN expected next", msn: "messages complete (MSN)", window: "window", rtt: "round trip, smoothed",
    retries: "retries left", rnr: "RNR retries left", credits: "peer's receives, beyond those used", held: "held: came early", refused: "a NAK was sent; all but the expected PSN is dropped",
    flight: "in flight" },
  packetsN: "{n} packets", unlimited: "no limit", psnList: "PSN {list}", lostMark: "lost", arrivedMark: "arrived", againMark: "sent again",
  timer: { ack: "acknowledge timeout", probe: "probe: sends one packet again", rnr: "waits for the peer's receive", pace: "pace", loss: "overtaken packets count as lost",
    gap: "a gap counts as a loss" },
  inTime: "in {time}",
  region: "{use} · {bytes} B at {addr} · rkey {rkey} · {access}",
  use: { source: "source", landing: "landing", inbox: "inbox", shared: "shared", counter: "counter" },
  regionAlt: "{use}: {bytes} bytes, {set} of them not zero", value: "as a number: {value}",
  // Packets.
  packet: "Packet {n}", packetTitle: "Packet {n}, from {from}: {name}, PSN {psn}", payload: "{bytes} B", damagedMark: "damaged", delayedMark: "delayed", copyMark: "copy of {n}",
  fate: { flying: "under way", arrived: "arrived", lost: "lost", dropped: "dropped by you" },
  row: "{from} sends {name}, PSN {psn}: {fate}",
  arrives: "arrives in {time}", noAction: "The packet is not under way any more.",
  action: { x: "Drop", l: "Delay", b: "Damage", c: "Copy", n: "Deliver now" },
  post: { s: "A: SEND", w: "A: WRITE", r: "A: READ", f: "A: FETCH_ADD", v: "B: post a receive", k: "Cut the link", K: "Mend the link" },
  header: "{name}, {len} bytes from byte {from} on",
  // What happens. The first group takes {who}.
  did: {
    post: "{who}'s program posts {op}, wr_id {id}, {bytes} bytes. That is a WQE in {who}'s send queue.",
    receive: "{who}'s program posts a receive, wr_id {id}, for {bytes} bytes. That is a WQE in {who}'s receive queue.",
    sent: "{who}'s device sends packet {packet}: {name}, PSN {psn}.",
    sentMany: "{who}'s device sends packets {first} to {last}: {name} to {lastName}, PSN {psn} to {lastPSN}.",
    arrived: "Packet {packet} arrives at {who}: {name}, PSN {psn}.",
    lost: "The link loses packet {packet}: {name}, PSN {psn}.",
    drop: "You drop packet {packet}: {name}, PSN {psn}.", delay: "You delay packet {packet}: {name}, PSN {psn}.",
    damage: "You turn over a bit of packet {packet}: {name}, PSN {psn}.", copy: "You copy packet {packet}: the copy is packet {other}.",
    deliver: "You let packet {packet} arrive first: {name}, PSN {psn}.",
    cqe: "{who}'s device puts a CQE into {who}'s completion queue: wr_id {id}, {op}, success.",
    cqeBad: "{who}'s device puts a CQE into {who}'s completion queue: wr_id {id}, {op}, status {status}.",
    poll: "{who}'s program polls the CQE of wr_id {id}.",
    state: "{who}'s QP goes from {op} to {text}.",
    memory: "Bytes {from} to {to} of {who}'s region “{use}” change.",
    cm: "The connection manager tells {who}'s program: {text}.",
    cutOn: "The link is cut. All packets are lost from now on.", cutOff: "The link carries packets again.",
    error: "A call fails: {text}.", over: "Nothing is under way, and no program has anything to do. The lesson is over; you may let the programs do more.",
    count: "{who}: {text} +{count}",
  },
  counter: {
    duplicate_request: "{who}'s device has had this packet before. It does not carry the request out twice, and acknowledges again.",
    out_of_seq_request: "{who}'s device drops the packet: an earlier one is missing.",
    send_seq_err: "{who}'s device answers with a NAK, “PSN sequence error”, once. It names the PSN that is missing.",
    rcvd_seq_err: "{who}'s device learns by the NAK from which PSN on it has to send again.",
    send_rnr_err: "No receive is posted at {who}. The device answers with an RNR NAK (receiver not ready), which says how long to wait.",
    rcvd_rnr_err: "{who}'s device waits as long as the RNR NAK says, and then sends again.",
    retrans_pkts: "{who}'s device sends again what was sent before: {count} of the packets.",
    loss_probes: "{who}'s device has heard nothing for a while, and sends one packet again, to learn what has arrived.",
    needless_probes: "The probe was needless: nothing was lost.", needless_repeats: "The packets that were to be sent again have arrived after all.",
    local_ack_timeout_err: "{who}'s acknowledge timeout has passed. It costs a retry.",
    retry_exceeded_err: "No retry is left. {who}'s device gives the connection up.", retry_rnr_exceeded_err: "No RNR retry is left. {who}'s device gives the connection up.",
    implied_nak_seq_err: "{who}'s device sees by a later answer that an earlier one is missing.",
    held_request: "The packet has come before an earlier one. {who}'s device keeps it, or puts its bytes to their place, and waits.",
    rx_write_requests: "{who}'s device has carried out a WRITE. No program of {who} has a part in it.",
    rx_read_requests: "{who}'s device reads its memory for the answers. No program of {who} has a part in it.",
    rx_atomic_requests: "{who}'s device reads, changes and writes the 8 bytes as one step.",
    rx_icrc_encapsulated: "The ICRC of the packet is wrong. {who}'s device drops it without an answer.",
    resp_remote_access_errors: "The rkey, the range or the access is wrong. {who}'s device refuses the request with a NAK, “remote access error”.",
    req_remote_access_errors: "{who}'s device learns by the NAK that its request was refused. The connection ends.",
    repeated_responses: "{who}'s device answers the request again.",
    unexpected_pkts: "{who}'s device drops the packet: nothing waits for it.",
    resp_local_length_error: "The message is longer than its receive.",
  },
  event: { request: "a REQ has come", reply: "a REP has answered the REQ", established: "the connection is established", disconnected: "the connection has ended",
    "time-wait exit": "no packet of the connection can be under way any more", rejected: "the peer has rejected it", unreachable: "the peer does not answer" },
  setting: {
    seed: ["Seed", "of the losses, the delays, the keys and the numbers"], bytes: ["Bytes", "of a message"], mtu: ["Path MTU", "bytes of payload in a packet at most"],
    depth: ["Depth", "places of each send queue and receive queue"], timeout: ["Timeout", "code: 4.096 µs × 2^n; 0 waits without end"], retry: ["retry_cnt", "retries after a timeout or a loss"],
    rnrretry: ["rnr_retry", "retries where no receive is posted; 7 has no end"], rnrtimer: ["min_rnr_timer", "code: how long the peer waits after an RNR NAK"],
    latency: ["Latency", "µs that a packet takes"], jitter: ["Jitter", "µs that a packet takes longer, at most"], loss: ["Loss", "percent of the packets"],
    adverb: ["Peer", "what both ends take the other for"], routing: ["Adaptive routing", "packets may overtake one another"],
  },
  choice: { adverb: ["a card: go-back-N", "an adverb: selective repeat"], routing: ["off", "on"] },
  lessons: {
    send: { title: "SEND and receive", text: [
      "B posts a receive: it says where the bytes of a message may go. A posts a SEND: it says what to send. Each is an entry (WQE) of a queue. From there on the two devices work alone.",
      "Watch the WQEs disappear from the queues, and the CQEs appear. B's CQE comes before A's: A's device waits for the acknowledgement."],
      tries: [["The ACK is lost", "l=send&d=3x2&at=3"], ["Two packets: 256 B of MTU, 400 bytes", "l=send&bytes=400&mtu=256"], ["The packet is damaged", "l=send&d=2b1&at=2"]] },
    write: { title: "RDMA WRITE", text: [
      "A writes into B's memory. The packet has the address and the rkey of B's region in its RETH. B posts no receive, gets no completion and does not notice.",
      "Choose the packet, and find the address, the rkey and the length among its bits."],
      tries: [["The packet comes twice", "l=write&d=1c1&at=1"], ["A depth of 1: the second WRITE waits for the first", "l=write&depth=1"]] },
    read: { title: "RDMA READ", text: [
      "A reads B's memory: one request, and as many answers as the bytes need. The answers have the PSNs that follow the request's. They acknowledge it, too.",
      "B's program has no part in it."],
      tries: [["The middle answer is lost", "l=read&d=2x3&at=2"], ["The request is lost", "l=read&d=1x1&at=1"]] },
    atomic: { title: "Atomics", text: [
      "B's region holds the number 37. A adds 5 by FETCH_ADD, then swaps 42 for 100 by COMPARE_SWAP, twice. The second time the number is not 42 any more: nothing changes, and A learns that by the value it gets.",
      "If an answer is lost, A's device asks again. B's device remembers the result, and does not add a second time."],
      tries: [["The answer is lost", "l=atomic&d=2x2&at=2"]] },
    mtu: { title: "MTU: first, middle, last", text: [
      "A packet carries as many bytes as the path MTU at most. A longer message is several packets: FIRST, MIDDLE and LAST. A message that fits is ONLY. FIRST alone says where the bytes go (RETH).",
      "Change the MTU, and count."],
      tries: [["MTU 256", "l=mtu&mtu=256"], ["MTU 4096: one packet", "l=mtu&mtu=4096"], ["3001 bytes: three bytes of pad", "l=mtu&bytes=3001"]] },
    connect: { title: "A connection: REQ, REP, RTU", text: [
      "QPs must know each other's number, address and first PSN. The connection manager tells them, by datagrams to QP 1: REQ, REP, RTU. Watch the QPs go from RESET to RTS. DREQ and DREP end the connection.",
      "A message that is not answered is sent again."],
      tries: [["The REQ is lost", "l=connect&d=1x1&at=1"], ["The RTU is lost: the first SEND stands for it", "l=connect&d=9x3&at=9"]] },
    loss: { title: "Loss: go-back-N", text: [
      "Two WRITEs of three packets each, toward a peer that does as cards do. It takes packets in the order of their PSNs alone. Behind a missing one it drops all, sends one NAK, and the sender goes back.",
      "Step until the packets are under way, choose PSN 1 and drop it. Or let the lesson do it:"],
      tries: [["PSN 1 is lost", "l=loss&d=2x2&at=2"], ["The last packet is lost: only a timer notices", "l=loss&d=2x6&at=2"], ["The link is cut for good", "l=loss&d=2k&at=2"], ["A fifth of all packets is lost", "l=loss&s=3&loss=20"]] },
    selective: { title: "Loss: selective repeat", text: [
      "The same two WRITEs between two adverbs, which know it of each other. The receiver keeps what comes behind a gap, and says in its acknowledgement what it has. The sender repeats what is missing, and nothing else.",
      "Count the packets, and compare with go-back-N."],
      tries: [["PSN 1 is lost", "l=selective&d=2x2&at=2"], ["Two packets are lost", "l=selective&d=2x2.2x5&at=2"], ["The same toward a card", "l=selective&adverb=0&d=2x2.2x5&at=2"]] },
    rnr: { title: "Receiver not ready", text: [
      "A's SEND comes before B has posted a receive. B's device answers with an RNR NAK, which carries B's min_rnr_timer. A's device waits that long, and sends again.",
      "The second SEND finds no receive at all. rnr_retry is 2: after two repeats A's device gives up. You can save it: let B post a receive."],
      tries: [["B posts in time", "l=rnr&d=13v&at=13"], ["rnr_retry 0: no second chance", "l=rnr&rnrretry=0"]] },
    keys: { title: "Keys and refusals", text: [
      "The first WRITE has B's rkey. The second has another one, by a mistake. B's device refuses it with a NAK, and the connection ends: both QPs go to ERR. The third WRITE is flushed: its status only says that something before it failed.",
      "The first CQE that is no success has the cause."],
      tries: [] },
    routing: { title: "Adaptive routing", text: [
      "Switches may send each packet of a connection another way. So packets overtake one another. Each WRITE packet is an ONLY here, with an address of its own: B's device puts it to its place whenever it comes, and takes a gap for a loss only if it stays.",
      "Turn adaptive routing off, and see what a device makes of it that does not know of such networks."],
      tries: [["Without adaptive routing", "l=routing&routing=0"], ["Without it, between adverbs", "l=routing&adverb=1&routing=0"], ["One packet is lost", "l=routing&d=1x3&at=1"]] },
    free: { title: "Free play", text: [
      "Two connected QPs, and one receive at B. The buttons below let the programs post. Spoil what you like."],
      tries: [] },
  },
};

// withLinks gives the lessons of a translation the links of the English ones.
function withLinks(t) {
  for (const [name, lesson] of Object.entries(t.lessons)) lesson.tries = lesson.tries.map((label, i) => [label, en.lessons[name].tries[i][1]]);
  return t;
}

// languages are by the code that stands in the attribute lang, with their names.
export const languages = { en, zh: withLinks(zh) };
export const languageNames = { en: "English", zh: "中文" };

export let words = en;

// speak chooses the language.
export function speak(code) {
  words = languages[code] ?? en;
  document.documentElement.lang = code in languages ? code : "en";
}

// say puts values into a text.
export const say = (text, values = {}) => text.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);
