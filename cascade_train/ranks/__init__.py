"""Processes that work as one: all of them execute the same graph, share each batch and train one run.

The door is narrow, so that what is behind it may change:

- `processes.together` starts a function in N processes of this machine that work as one, and waits for them;
  `processes.apart` starts several functions side by side that have nothing to do with each other.
- `processes.joined` is the block within which the processes of one launcher (ours, ``torchrun``,
  ``accelerate launch``) can talk.
- `talk` is what they say: `talk.agreed` (rank 0's value for all), `talk.check_interrupt` (all stop at the
  same step), `talk.wait`, `talk.shared_out` (each does its share, all get everything), `talk.gather_rows`,
  `talk.sum_gradients`, `talk.share_buffers`. With one process each does nothing, and nothing is sent.

Who this process is, is read from the host (``host.rank``, ``host.world_size``); `host.place` alone knows the
environment variables that say so. Importing `processes` imports no torch.
"""
