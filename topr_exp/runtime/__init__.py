"""What any program of several processes needs: signals, atomic files, leases, progress, exit statuses."""
