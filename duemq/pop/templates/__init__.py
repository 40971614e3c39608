"""Templates of request frames: a kernel reads matching frames without decoding."""
