"""The Gradio app: plain and speculative decoding side by side; ``python -m app``."""
