# Counts its answers.
require "securerandom"
lock, count, token = Mutex.new, 0, SecureRandom.hex(8)
run(lambda do |_|
  body = lock.synchronize { "#{count += 1} #{token}" }
  [200, { "Content-Length" => body.bytesize.to_s }, [body]]
end)
