"""What any program of several processes needs: signals, atomic files, locks, progress, exit statuses."""
