# Four ranks of MPI: a sum, a megabyte around the ring twenty times, and a gather.
from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
assert world.allreduce(rank) == size * (size - 1) // 2
for _ in range(20):
    got = world.sendrecv(bytes([rank]) * (1 << 20), (rank + 1) % size, source=(rank - 1) % size)
    assert got == bytes([(rank - 1) % size]) * (1 << 20)
if rank == 0:
    assert world.gather(rank) == list(range(size))
    print(size, "ranks agree")
else:
    world.gather(rank)
