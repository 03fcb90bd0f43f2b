"""One run as files: what it is, what it reads, how far it got, what it prints; and what a command line stands for."""
