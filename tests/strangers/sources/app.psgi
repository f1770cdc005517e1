# Counts its answers: the workers share a file that is deleted.
use strict;
use warnings;
use Fcntl qw(:flock :seek);

open(my $file, '+>', "/tmp/count.$$") or die $!;
unlink "/tmp/count.$$";
my $token = join '', map { sprintf '%02x', int rand 256 } 1 .. 8;
sub {
    flock($file, LOCK_EX);
    sysseek($file, 0, SEEK_SET);
    my $read = 0;
    sysread($file, $read, 20);
    my $count = 1 + ($read || 0);
    sysseek($file, 0, SEEK_SET);
    syswrite($file, $count);
    sysseek($file, 0, SEEK_SET);
    flock($file, LOCK_UN);
    my $body = "$count $token";
    return [200, ['Content-Length' => length $body], [$body]];
};
