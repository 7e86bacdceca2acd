"""Training of MSD and EAGLE heads for any supported target."""
