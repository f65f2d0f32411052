"""Messages between two ranks: send and receive, with tags, in any order of posting, any number at once.

Each ordered pair of ranks has a mailbox, a small ring of slots of its own in the communicator's room. A message is a
few calls of the plan `collectives.algorithms.send` on that ring, of which the sender is rank 0 and the receiver rank 1:

    envelope   one doorbell line: the message's size and tag and, where they fit, all its bytes
    segments   the rest through the slots, several rounds at a time; a receiver's "done" gives a slot back

So every rule and proof of plans holds for messages: one writer for each line, and slots that are used again only when
they were read. Nothing is shared with collectives: neither the ring nor the order of calls nor the memory's fences.

    requests    Status and Request, what a user gets
    envelopes   the line in front of a message
    mailboxes   where each pair's ring lies, and how large it is
    transfers   calls under way on any engine, many at once
    channels    one direction of a pair: what is being sent, what is being received
    matching    which receive takes which message
    messenger   posts, makes progress, waits, watches the peers
    verbs       send, recv, isend, irecv and the others, as methods
"""
