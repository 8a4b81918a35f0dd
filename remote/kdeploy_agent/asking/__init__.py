"""What a server answers, asked over HTTP."""
