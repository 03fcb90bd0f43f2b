"""Machine: signals, atomic files, locks, processes, progress, exit statuses."""
