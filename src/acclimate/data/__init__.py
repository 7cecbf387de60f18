"""From files to batches: decoding, quarantine of what does not decode, augmentation."""
